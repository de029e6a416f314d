"""Triton kernels that a graph entry holds, whose files need not be kept a second time.

In: a reader of a graph entry, or a path of a cache. Out: what the entry holds beside the contents of kernels' files,
and the names of folders of ``triton/``: those that torch fills from the entry when the graph hits, and leaves alone
where they are there (torch 2.11 ``_inductor/triton_bundler.py``: ``collect``, ``read_and_emit``). The pickle is walked
from one opcode to the next, not loaded. Where it is not understood, all counts as text, and kernels are kept twice.
"""

from __future__ import annotations

import itertools
import pickletools
import re
from collections.abc import Callable, Iterable, Iterator

Read = Callable[[int, int], bytes]
"""From an offset, at most so many bytes; fewer at the end of the file."""

_KERNEL = re.compile(
    rb"\x8c4([A-Z2-7]{52})\x94"  # SHORT_BINUNICODE of 52 bytes: kernel_hash, in base 32 (triton runtime/cache.py)
    rb"(?:\x8c\x06device\x94|h.|j.{4})K(.)"  # the key, written out or from the memo; the device's index, below 256
    rb"(?:\x8c\x09artifacts\x94|h.|j.{4})\]\x94[^u]",  # the list of files begins, and does not end there
    re.DOTALL,
)
_LONGEST = 128
"""More bytes than one match takes."""
_CLASS = b"\x8c\x15TritonKernelArtifacts\x94"
_AFTER = b"static_autotuners"
"""The field of ``TritonBundle`` that follows the kernels: tens of thousands of opcodes without a kernel's file."""
_PAYLOAD = b"payload"
"""The key between a file's name and its content; written out once, then from the memo."""
_FILE = re.compile(rb".+\.(?:cubin|hsaco|ptx|amdgcn|spv|zebin|llir|ttir|ttgir|source)", re.DOTALL)
"""Not ``.json``: small, and text to look at, as in ``triton/`` (``secrets.has_text``)."""
_NEXT = re.compile(
    rb"""
    \x94 u b                                            # the file's record ends
    (?P<kernel>
        e u b                                           # and perhaps that of its kernel; the next kernel's begins,
        (?:\x95.{8})? (?:h.|j.{4}) \) \x81 \x94 } \x94 \(  # perhaps in a new frame, of the class in the memo:
        (?:h.|j.{4}) \x8c4 .{52} \x94                    # its hash
        (?:h.|j.{4}) K .                                # its device
        (?:h.|j.{4}) ] \x94 \(                           # its files
    )?
    (?:\x95.{8})? (?:h.|j.{4}) \) \x81 \x94 } \x94 \(      # the record of the next file begins
    (?:h.|j.{4}) \x8c (?P<length>.)                     # with its name, of so many bytes
    """,
    re.DOTALL | re.VERBOSE,
)
"""What pickle writes between one kernel's file and the name of the next: one step for many opcodes."""
_OPCODES, _MORE_OPCODES = 11, 19
"""Of the last record, beside the one that counts anyway; of the optional part."""
_PIECE = 1 << 20
_STEP = 4096
"""Bytes read at once while walking: about what lies between two contents."""
_PATIENCE = 100_000
"""Opcodes without a kernel's file, after which none is expected: a file of opcodes only would take minutes."""
_EARNS = 128
"""Bytes of a kernel's file that allow for one more opcode: millions of files of a byte would take minutes too."""
_MOST = 400
"""More bytes than an opcode takes with its argument, a long one's content excepted, or than ``_NEXT`` and a name."""

_SIZES = {ord(op.code): op.arg.n if op.arg else 0 for op in pickletools.opcodes}
_FIXED = [size if (size := _SIZES.get(code, -1)) >= 0 else -1 for code in range(256)]
"""Bytes of an opcode's argument; -1 for those that tell their length, and for all others."""
_LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_COUNTED = [_LENGTH_BYTES.get(_SIZES.get(code, 0), 0) for code in range(256)]
"""Bytes that tell an argument's length; 0 where none do."""
_SHORT_TEXT, _BYTES = 0x8C, frozenset(b"BC\x8e")
_BUILD = ord("b")
"""Ends a record: the next file may have its name from the memo, and must not pass for the one before."""
_FIXED[_BUILD] = -1


def without_kernels(read: Read, size: int) -> Iterator[bytes]:
    """The content in pieces of about a megabyte, but for that of the kernels' files."""
    pieces: list[bytes] = []
    waiting = 0
    start = _find(read, size)
    read = _Remembering(read)
    for begin, end in itertools.chain(_spans(0, start), _between(read, start, size)):
        pieces.append(read(begin, end - begin))
        waiting += end - begin
        if waiting >= _PIECE:
            yield b"".join(pieces)
            pieces, waiting = [], 0
    yield b"".join(pieces)


def kernels_in(pieces: Iterable[bytes]) -> frozenset[str]:
    """``DEVICE/HASH`` of each kernel whose files the entry with this content holds (they may have been left out)."""
    found: set[str] = set()
    end = b""
    begun = False
    for piece in pieces:
        window = end + piece
        begin = 0 if begun else window.find(_CLASS)
        if begun := begin >= 0:
            found.update(f"{device[0]}/{name.decode()}" for name, device in _KERNEL.findall(window, begin))
        end = window[-_LONGEST:]
    return frozenset(found)


def folders_of(kernel: str) -> tuple[str, str]:
    """Where in a cache a kernel's files may lie; without the device where ``TRITON_CACHE_DIR`` names the folder."""
    return f"triton/{kernel}", f"triton/{kernel.partition('/')[2]}"


class _Remembering:
    """A reader that keeps the last window: what lies between two contents is needed twice."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._window, self._base = b"", 0

    def __call__(self, at: int, length: int) -> bytes:
        begin = at - self._base
        if begin < 0 or begin + length > len(self._window):
            if length != _STEP:
                return self._read(at, length)
            self._window, self._base, begin = self._read(at, length), at, 0
        return self._window[begin : begin + length]


def _find(read: Read, size: int) -> int:
    """Where the first kernel begins; ``size`` if there is none."""
    for at, end in _spans(0, size):
        found = read(at, end - at + len(_CLASS)).find(_CLASS)
        if found >= 0:
            return at + found
    return size


def _spans(begin: int, end: int) -> Iterator[tuple[int, int]]:
    return ((at, min(at + _PIECE, end)) for at in range(begin, end, _PIECE))


def _between(read: Read, begin: int, size: int) -> Iterator[tuple[int, int]]:
    """The spans of ``[begin, size)`` that are not a kernel's file."""
    for content, end in _contents(read, begin, size):
        yield from _spans(begin, content)
        begin = end
    yield from _spans(begin, size)


def _contents(read: Read, at: int, size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each kernel's file, from the opcode at ``at`` on, as far as they are understood."""
    window, base = b"", at
    before = last = b""
    left, ended = _PATIENCE, False
    while at < size and left > 0:
        left -= 1
        here = at - base
        if here + _MOST > len(window):
            window, base, here = read(at, _STEP), at, 0
        between, ended = _NEXT.match(window, here) if ended else None, False
        if between and (name := window[between.end() : between.end() + between["length"][0]]) != _AFTER:
            at = base + between.end() + between["length"][0]
            before, last = b"", name
            left -= _OPCODES + (_MORE_OPCODES if between["kernel"] else 0)
            continue
        code = window[here] if window else 0
        fixed, counted = _FIXED[code], _COUNTED[code]
        if fixed >= 0:
            at += 1 + fixed
            continue
        if code == _BUILD:
            at += 1
            before = last = b""
            continue
        if not counted:
            return
        content = at + 1 + counted
        at = content + int.from_bytes(window[here + 1 : here + 1 + counted], "little")
        if code == _SHORT_TEXT:
            before, last = last, window[content - base : at - base]
            if last == _AFTER:
                return
        elif code in _BYTES:
            ended = True
            if at <= size and _FILE.fullmatch(before if last == _PAYLOAD else last):
                yield content, at
                left = min(_PATIENCE, left + (at - content) // _EARNS)
