"""Every change that the project makes to a file system: one function a system call, so that a test can stop in between.

In: paths, descriptors, bytes. Out: the change, or ``OSError``. Production code never sets ``trip``; the crash tests set
it in a forked child, and it is called before each step with its name (a write is two steps: half and the rest).
It decides nothing about atomicity; see ``atomic.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

trip: Callable[[str], None] | None = None
"""Called before every step where it is set."""

FEW = 16
"""Up to so many files are synced one by one; a sync of the file system would wait for other programs' data too."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_START_WRITEBACK = 2  # SYNC_FILE_RANGE_WRITE
_LIBC = ctypes.CDLL(None, use_errno=True)


def _step(name: str) -> None:
    if trip is not None:
        trip(name)


def create(path: str | Path, *, mode: int) -> int:
    """A descriptor of a new file, open for writing; ``FileExistsError`` if something is there."""
    _step("create")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def write(fd: int, data: bytes) -> None:
    """All of ``data``."""
    rest = memoryview(data)
    if trip is not None:
        rest = rest[os.write(fd, rest[: len(rest) // 2]) :]
        trip("write")
    while rest:
        rest = rest[os.write(fd, rest) :]


def fsync(fd: int) -> None:
    """Make a file durable."""
    _step("fsync")
    os.fsync(fd)


def fsync_dir(path: str | Path) -> None:
    """Make what was created, renamed or removed in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def sync_tree(root: Path, files: Iterable[str], folders: Iterable[str | Path]) -> None:
    """Make many files and folders of one file system durable: at once where Linux's ``syncfs`` is, else each."""
    files, folders = list(files), list(folders)
    if len(files) + len(folders) > FEW and hasattr(_LIBC, "syncfs"):
        _step("syncfs")
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _LIBC.syncfs(fd) == 0:  # since Linux 5.8 it reports failed writes
                return
            if (code := ctypes.get_errno()) not in (errno.ENOSYS, errno.EOPNOTSUPP):
                raise OSError(code, os.strerror(code), str(root))
        finally:
            os.close(fd)
    for file in files:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fsync(fd)
        finally:
            os.close(fd)
    for folder in folders:
        fsync_dir(folder)


def start_writeback(fd: int) -> None:
    """Let the disk begin, without waiting, so that a later sync has less to do; nothing where that is unknown."""
    if hasattr(_LIBC, "sync_file_range"):
        _LIBC.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _START_WRITEBACK)


def rename(source: str | Path, destination: str | Path) -> None:
    """Atomically; replaces a file that is there."""
    _step("rename")
    os.rename(source, destination)


def exchange(one: Path, other: Path) -> None:
    """Swap two paths in one step; ``OSError`` with ``ENOSYS`` or ``EINVAL`` where the system cannot."""
    _step("exchange")
    if not hasattr(_LIBC, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if _LIBC.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def link(source: str | Path, destination: str | Path) -> None:
    """A second name; ``FileExistsError`` if something has it."""
    _step("link")
    os.link(source, destination)


def unlink(path: str | Path, *, missing_ok: bool = False) -> None:
    """Remove a file."""
    _step("unlink")
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


def mkdir(path: str | Path, *, mode: int) -> None:
    """A new directory; ``FileExistsError`` if something is there."""
    _step("mkdir")
    os.mkdir(path, mode)


def remove_tree(path: str | Path) -> None:
    """Remove a directory and all in it, following no link; what somebody else removes meanwhile is no error."""
    try:
        with os.scandir(path) as listing:
            items = list(listing)
    except FileNotFoundError:
        return
    for item in items:
        if item.is_dir(follow_symlinks=False):
            remove_tree(item.path)
        else:
            unlink(item.path, missing_ok=True)
    _step("rmdir")
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
