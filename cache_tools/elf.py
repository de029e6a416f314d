"""Is a shared object complete? Answered from its headers, without reading its content.

In: an open file and its size. Out: None, or a short reason. A linker that was killed leaves an empty or a short file
under the final name and torch, which only asks whether the file exists, trusts it for ever. A changed byte inside a
section is not seen here: only a snapshot's digest sees that.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

_ELF = b"\x7fELF"
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_PT_LOAD = 1


def elf_problem(handle: BinaryIO, size: int) -> str | None:
    """Why the loader would fail; None if the headers and ``size`` (bytes) agree, or for Mach-O, which is not judged.

    Raises:
        OSError: the file cannot be read.
    """
    if size == 0:
        return "empty: a linker was killed"
    head = handle.read(64)
    if head[:4] in _MACH_O:
        return None
    if head[:4] != _ELF:
        return "no ELF header"
    if len(head) < 64 or head[4] != 2 or head[5] not in (1, 2):
        return "a cut or foreign ELF header"
    order = "<" if head[5] == 1 else ">"
    phoff, shoff = struct.unpack_from(order + "QQ", head, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from(order + "HHHH", head, 54)
    if shoff + shentsize * shnum > size:
        return f"cut: its section table ends at byte {shoff + shentsize * shnum} of {size}"
    if phnum == 0:  # an object file
        return None
    if phentsize != 56 or phoff + phentsize * phnum > size:
        return "cut: its program headers run past its end"
    handle.seek(phoff)
    table = handle.read(phentsize * phnum)
    for index in range(phnum):
        kind, _, offset, _, _, length = struct.unpack_from(order + "IIQQQQ", table, index * phentsize)
        if kind == _PT_LOAD and offset + length > size:
            return f"cut: a segment ends at byte {offset + length} of {size}"
    return None
