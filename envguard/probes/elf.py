"""Which CUDA libraries the native modules of an environment need: ``DT_NEEDED`` of their ELF headers.

In: shared objects of a site-packages. Out: ``CudaLinks``. It reads a few kilobytes of each file, loads nothing, and
runs no ``ldd``. What is no 64-bit little-endian ELF file (macOS, Windows, a text stub) needs nothing that it could
tell.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from envguard.frozen import Frozen

CUDA_LIBRARY = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink|cupti|nccl|nvToolsExt)\.so\.(\d+)"
)
"""Their soname ends in the library's own major version, which is not always that of the CUDA release: with CUDA 13,
libcudart has 13, libcufft 12, libcudnn 9."""

MAX_HEADERS = 4096
MAX_TABLE = 4 << 20
"""Bytes of one section that are read at most; the dynamic string table of libtorch_cuda has about two megabytes."""
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 1, 5, 10


class CudaLinks(Frozen):
    """What needs which CUDA library. Sonames are such as ``libcudart.so.13``."""

    torch: tuple[str, ...]
    """Needed by torch's own libraries."""
    modules: tuple[tuple[str, tuple[str, ...]], ...]
    """(path, needed) of modules outside torch and NVIDIA's packages that need any."""
    provided: frozenset[str]
    """Those that lie in the environment."""


def read_cuda_links(site_packages: Path, files: Iterable[str], modules: Iterable[str]) -> CudaLinks:
    """Read the needs of ``modules`` (paths in ``site_packages``); ``files`` are all that could provide a library."""
    torch: set[str] = set()
    others: list[tuple[str, tuple[str, ...]]] = []
    for path in modules:
        head = path.partition("/")[0]
        if head == "nvidia":
            continue
        needs = tuple(sorted(name for name in needed(site_packages / path) if CUDA_LIBRARY.fullmatch(name)))
        if head == "torch":
            torch.update(needs)
        elif needs:
            others.append((path, needs))
    names = (path.rpartition("/")[2] for path in files if ".so" in path)
    provided = frozenset(name for name in names if CUDA_LIBRARY.fullmatch(name))
    return CudaLinks(torch=tuple(sorted(torch)), modules=tuple(others), provided=provided)


def needed(path: Path) -> tuple[str, ...]:
    """The sonames in ``DT_NEEDED``; () where the file cannot be read or is no ELF file of this kind."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ()
    try:
        return _read_needed(descriptor)
    except (OSError, struct.error, OverflowError):  # cut or forged: a loader refuses it too
        return ()
    finally:
        os.close(descriptor)


def _read_needed(descriptor: int) -> tuple[str, ...]:
    header = os.pread(descriptor, 64, 0)
    if header[:6] != b"\x7fELF\x02\x01":
        return ()
    (offset,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    if size < 56 or count > MAX_HEADERS:
        return ()
    table = os.pread(descriptor, size * count, offset)
    segments = [struct.unpack_from("<IIQQQQQQ", table, size * index) for index in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return ()
    data = os.pread(descriptor, min(dynamic[5], MAX_TABLE), dynamic[2])
    entries = list(struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]))
    tags = dict(reversed(entries))
    address, length = tags.get(_DT_STRTAB), tags.get(_DT_STRSZ)
    loads = [segment for segment in segments if segment[0] == _PT_LOAD]
    if address is None or length is None:
        return ()
    place = next((load[2] + address - load[3] for load in loads if load[3] <= address < load[3] + load[5]), None)
    if place is None:
        return ()
    strings = os.pread(descriptor, min(length, MAX_TABLE), place)
    found = [strings[value : strings.find(b"\0", value)] for tag, value in entries if tag == _DT_NEEDED]
    return tuple(name.decode(errors="replace") for name in found if name)
