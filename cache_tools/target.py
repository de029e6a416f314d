"""Where a cache may be restored to, and how a directory is put there at once.

In: a path. Out: a refusal, a staging directory, or directories swapped atomically. Everything in a cache is executed,
so a place that somebody else can write to is refused, and links are not followed. It knows nothing of snapshots.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cache_tools import lease
from cache_tools.errors import READ_ONLY_ADVICE, StorageError
from cache_tools.kinds import is_torchs, tells_a_cache
from cache_tools.scan import walk
from envguard import fsops
from envguard.errors import UsageError

log = logging.getLogger(__name__)


def check_target(target: Path) -> None:
    """Refuse ``target`` unless this user alone decides what is in it.

    Raises:
        UsageError: it is the root, a link or a file, or it or its parent belongs to or can be written by somebody else.
        StorageError: it is on a read-only file system, where torch cannot use it either.
    """
    if not target.name:
        raise UsageError(f"{target} is the root of the file system: give a directory of its own with --to")
    if os.path.lexists(target):
        _check_directory(target, owners={os.geteuid()})
        if os.statvfs(target).f_flag & os.ST_RDONLY:  # also where nothing is missing: torch could not use it
            raise StorageError(f"{target} is on a read-only file system{READ_ONLY_ADVICE}")
    parent = next(folder for folder in target.parents if folder.exists())
    _check_directory(parent.resolve(), owners={os.geteuid(), 0})


def check_apart(target: Path, others: Mapping[str, Path], *, option: str = "--to") -> None:
    """Refuse ``target``, which ``option`` gives, if it is, contains, or lies in one of ``others`` (what → where).

    Raises:
        UsageError: it is, does, or lies in one.
    """
    here = Path(os.path.realpath(target))
    for what, other in others.items():
        there = Path(os.path.realpath(other))
        if here == there or here in there.parents or there in here.parents:
            relation = "is" if here == there else "contains" if here in there.parents else "lies in"
            raise UsageError(f"{target} {relation} {what} {other}: give another place with {option}")


def check_replaceable(target: Path) -> int:
    """How many files go when ``target``, which may be absent, is replaced.

    Raises:
        UsageError: it holds something that is not of a compile cache; the message names the first such file.
    """
    files = [path for path, _ in walk(target)] if target.exists() else []
    if foreign := min((path for path in files if not is_torchs(path)), default=None):
        raise UsageError(
            f"{target} holds {foreign}, which is not of a compile cache, and --replace would delete it: "
            "give another place with --to, or leave --replace out"
        )
    return len(files)


def check_mergeable(target: Path) -> None:
    """Refuse a directory that holds files, none of them of a compile cache: somebody's sources, most likely.

    Raises:
        UsageError: it is such a directory; the message names a file.
    """
    first = None
    for path, _ in walk(target) if target.exists() else ():
        if tells_a_cache(path):
            return
        first = first or path
    if first:
        raise UsageError(
            f"{target} holds {first} and nothing of a compile cache: give an empty or a new directory with --to"
        )


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
            fsops.mkdir(folder, mode=0o755)
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise UsageError(f"{folder} is a link or a file: remove it, or restore with --replace") from None
    return folder


def exchange(new: Path, old: Path) -> None:
    """Swap two directories in one step, so that ``old`` is never absent.

    Raises:
        StorageError: this system cannot; nothing was changed.
    """
    try:
        fsops.exchange(new, old)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise
        reason = error.strerror
        raise StorageError(f"{old} cannot be swapped in one step ({reason}): remove it, then restore again") from error


def sweep_staging(where: Path, name: str) -> None:
    """Remove the staging directories that killed processes left under ``where``; the name tells whose they are."""
    prefix = _prefix(name)
    for left in sorted(where.glob(f"{glob.escape(prefix)}*")):
        owner = left.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):
            if lease.is_over(owner, time.time() - left.lstat().st_mtime):
                fsops.remove_tree(left)


@contextlib.contextmanager
def staging_directory(where: Path, name: str) -> Iterator[Path]:
    """A new directory of this user alone under ``where``, removed at the end unless it was renamed away."""
    staging = where / f"{_prefix(name)}{lease.owner()}-{os.urandom(8).hex()}"
    fsops.mkdir(staging, mode=0o700)
    try:
        yield staging
    finally:
        try:
            fsops.remove_tree(staging)
        except OSError as error:  # the first error counts, and the next restore removes it
            log.warning("%s could not be removed: %s", staging, error)


def _prefix(name: str) -> str:
    return f".tmp-restore-{name[:64]}-"
