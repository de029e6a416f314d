"""Where a cache may be restored to, and how a directory is put there at once.

In: a path. Out: a refusal, or directories swapped atomically. Everything in a cache is executed, so a place that
somebody else can write to is refused, and links are not followed. It knows nothing of snapshots.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from cache_tools.errors import READ_ONLY_ADVICE, StorageError
from envguard.errors import UsageError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def check_target(target: Path) -> None:
    """Refuse ``target`` unless this user alone decides what is in it.

    Raises:
        UsageError: it is a link or a file, or it or its parent belongs to or can be written by somebody else.
        StorageError: it is on a read-only file system, where torch cannot use it either.
    """
    if os.path.lexists(target):
        _check_directory(target, owners={os.geteuid()})
        if os.statvfs(target).f_flag & os.ST_RDONLY:  # also where nothing is missing: torch could not use it
            raise StorageError(f"{target} is on a read-only file system{READ_ONLY_ADVICE}")
    parent = next(folder for folder in target.parents if folder.exists())
    _check_directory(parent.resolve(), owners={os.geteuid(), 0})


def _check_directory(path: Path, owners: set[int]) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise UsageError(f"{path} is a link: give the directory that it points to")
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is not a directory: give another place with --to")
    if status.st_uid not in owners:
        raise UsageError(f"{path} belongs to user {status.st_uid}, and caches are executed: use your own directory")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise UsageError(f"{path} is writable by everybody, and caches are executed: chmod o-w {path}")


def make_parents(target: Path, path: str) -> Path:
    """Create the folders that ``path`` needs under ``target``; its parent.

    Raises:
        UsageError: one of them is a link or a file.
        OSError: one of them cannot be made.
    """
    folder = target
    for part in path.split("/")[:-1]:
        folder = folder / part
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise UsageError(f"{folder} is a link or a file: remove it, or restore with --replace") from None
    return folder


def exchange(new: Path, old: Path) -> None:
    """Swap two directories in one step, so that ``old`` is never absent.

    Raises:
        StorageError: this system cannot; nothing was changed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise StorageError(f"this system cannot swap directories in one step: remove {old}, then restore again")
    arguments = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
    if libc.renameat2(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise StorageError(f"{old} cannot be swapped in one step ({reason}): remove it, then restore again")
