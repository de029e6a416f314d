"""Every change that the project makes to a file system: one function a system call, so that a test can stop in between.

In: paths, descriptors, bytes. Out: the change, or ``OSError``. Production code never sets ``trip``; the crash tests set
it in a forked child, and it is called before each step with its name (a write is two steps: half and the rest).
It decides nothing about atomicity; see ``atomic.py``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

trip: Callable[[str], None] | None = None
"""Called before every step where it is set."""

FEW = 16
"""Up to so many files are synced one by one; a sync of the file system would wait for other programs' data too."""

WRITEBACK_BYTES = 8 << 20
"""Bytes after which the disk may begin."""

_NO_SYNCFS = (errno.ENOSYS, errno.EOPNOTSUPP)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_START_WRITEBACK = 2  # SYNC_FILE_RANGE_WRITE


def _libc() -> ctypes.CDLL:
    import ctypes  # 7 ms, which a start that writes nothing does not owe

    return ctypes.CDLL(None, use_errno=True)


def _step(name: str) -> None:
    if trip is not None:
        trip(name)


def create(path: str | Path, *, mode: int) -> int:
    """A descriptor of a new file, open for writing; ``FileExistsError`` if something is there."""
    _step("create")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def write(fd: int, data: bytes | memoryview) -> None:
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
    import ctypes

    files, folders, libc = list(files), list(folders), _libc()
    if len(files) + len(folders) > FEW and hasattr(libc, "syncfs"):
        _step("syncfs")
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if libc.syncfs(fd) == 0:  # since Linux 5.8 it reports failed writes
                return
            if (code := ctypes.get_errno()) not in _NO_SYNCFS:
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
    import ctypes

    libc = _libc()
    if hasattr(libc, "sync_file_range"):
        libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _START_WRITEBACK)


class Writeback:
    """Lets the disk work on many new files of one file system while more are written; durable they are not by it.

    In: how many bytes were written, whenever some were. A thread flushes the file system each ``WRITEBACK_BYTES``. (A
    ``sync_file_range`` a file costs as much processor time as creating it.)
    """

    def __init__(self, root: str | Path) -> None:
        self._root = root
        self._bytes = 0
        self._flush = threading.Event()
        self._over = False
        self._failed = 0
        self._fd = -1
        self._thread: threading.Thread | None = None

    def note(self, written: int) -> None:
        """``written`` more bytes."""
        self._bytes += written
        if self._bytes >= WRITEBACK_BYTES:
            self._bytes = 0
            if self._thread is None:
                self._fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._flush.set()

    def __enter__(self) -> Writeback:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over = True
        self._flush.set()
        if self._thread:
            self._thread.join()
            os.close(self._fd)
        if self._failed and kind is None:  # each descriptor is told of a failed write once
            raise OSError(self._failed, os.strerror(self._failed), str(self._root))

    def _run(self) -> None:
        import ctypes

        libc = _libc()
        while hasattr(libc, "syncfs") and not self._over:
            self._flush.wait()
            self._flush.clear()
            if not self._over and libc.syncfs(self._fd) != 0 and ctypes.get_errno() not in _NO_SYNCFS:
                self._failed = ctypes.get_errno()


def rename(source: str | Path, destination: str | Path) -> None:
    """Atomically; replaces a file that is there."""
    _step("rename")
    os.rename(source, destination)


def exchange(one: Path, other: Path) -> None:
    """Swap two paths in one step; ``OSError`` with ``ENOSYS`` or ``EINVAL`` where the system cannot."""
    import ctypes

    _step("exchange")
    libc = _libc()
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
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


def make_dirs(path: Path, *, mode: int) -> None:
    """``mkdir -p`` that lasts: the parents of what is new are synced. Parents get the umask's mode, ``path`` ``mode``.

    Raises:
        OSError: as ``mkdir``; NotADirectoryError where a file is in the way.
    """
    missing = [path] if not path.is_dir() else []
    while missing and not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        try:
            mkdir(folder, mode=mode if folder == path else 0o777)
        except FileExistsError as error:
            if not folder.is_dir():  # else another process was faster
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        with contextlib.suppress(PermissionError):  # a folder that one may write and not read cannot be synced
            fsync_dir(folder.parent)


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
