"""Bad files of a cache that nobody snapshotted, and their quarantine, so that torch builds them again.

In: a cache directory, possibly in use. Out: the files that torch would trust wrongly, moved aside on request.
The quick check opens only shared objects, and of those only the headers; ``deep`` reads everything whose name is its
checksum, and judges owners, permissions and folders. A shared object that some process is building right now is left
alone: its lock is torch's own (``CppCodeCache`` in ``torch/_inductor/codecache.py``). Nothing is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from cache_tools.elf import elf_problem
from cache_tools.errors import storage_errors
from cache_tools.kinds import GRAPHS, NOT_KEPT, SELF_NAME, Kind, is_self_named, kind_of, name_matches
from cache_tools.scan import walk
from envguard.frozen import Frozen


class BadFile(Frozen):
    """One file that should not be used, or a folder that others can write to."""

    path: str
    """Relative to the cache directory, with ``/``; ``.`` is the directory itself."""
    kind: Kind
    reason: str
    folder: bool = False
    """A folder stays where it is: a repair takes the permission away."""


class Quarantine(Frozen):
    """What ``quarantine`` did."""

    folder: Path | None
    """Where the files are now; None if none was moved."""
    moved: tuple[BadFile, ...]
    busy: tuple[BadFile, ...]
    """Left alone: a live process is building them, or a folder is somebody else's. What is healthy or gone by now is
    in none of these."""
    closed: tuple[BadFile, ...] = ()
    """Folders that not everybody can write to any more."""


def check_live(cache_dir: Path, *, deep: bool = False) -> tuple[BadFile, ...]:
    """The bad files under ``cache_dir``, sorted by path; none where there is no such directory yet.

    Raises:
        UsageError: a directory cannot be listed.
        StorageError: a file cannot be read.
    """
    cache_dir = Path(os.path.realpath(cache_dir))  # of a link, the permissions say nothing
    bad: list[BadFile] = []
    folders: list[str] = []
    with storage_errors(f"checking {cache_dir}"):
        for path, status in walk(cache_dir, on_folder=folders.append):
            kind = kind_of(path)
            if status is None or kind in NOT_KEPT:
                continue
            if reason := _problem(cache_dir, path, kind, status, deep=deep):
                bad.append(BadFile(path=path, kind=kind, reason=reason))
        for folder in map(Path, folders) if deep and cache_dir.exists() else ():
            if reason := _folder_problem(folder):
                bad.append(BadFile(path=_relative(folder, cache_dir), kind=Kind.UNKNOWN, reason=reason, folder=True))
    return tuple(sorted(bad, key=lambda file: file.path))


def quarantine(cache_dir: Path, bad: Iterable[BadFile]) -> Quarantine:
    """Move ``bad`` files to ``<cache_dir>.quarantine-<stamp>/``; those being built or healthy by now stay.

    Folders that everybody can write to are closed and stay; what lies in them was judged like all else.

    Raises:
        StorageError: the file system refuses.
    """
    cache_dir = Path(os.path.realpath(cache_dir))  # "." has no name to put a suffix on
    folder = cache_dir.with_name(f"{cache_dir.name}.quarantine-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    moved: list[BadFile] = []
    busy: list[BadFile] = []
    closed: list[BadFile] = []
    with storage_errors(f"moving bad files to {folder}"):
        for file in bad:
            if file.folder:
                (closed if _close(cache_dir / file.path) else busy).append(file)
                continue
            with not_being_built(cache_dir, file.path) as idle:
                if not idle:
                    busy.append(file)
                elif _is_still_bad(cache_dir, file):
                    _move(cache_dir / file.path, folder / file.path, folder)
                    moved.append(file)
    return Quarantine(folder=folder if moved else None, moved=tuple(moved), busy=tuple(busy), closed=tuple(closed))


def _close(folder: Path) -> bool:
    """Let only the owner and the group write to ``folder``; False if it is somebody else's."""
    status = folder.lstat()
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        return False
    folder.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)
    return True


def _folder_problem(folder: Path) -> str | None:
    status = folder.lstat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"a folder of user {status.st_uid}: everything in a cache is executed"
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "a folder writable by everybody: everything in a cache is executed"
    return None


def _relative(folder: Path, cache_dir: Path) -> str:
    return folder.relative_to(cache_dir).as_posix()


def _is_still_bad(cache_dir: Path, file: BadFile) -> bool:
    try:
        status = (cache_dir / file.path).lstat()
        metadata = _metadata_problem(status)
        return bool(metadata or content_problem(cache_dir / file.path, file.path, file.kind, deep=True))
    except FileNotFoundError:
        return False


def _move(source: Path, destination: Path, folder: Path) -> None:
    import shutil  # 3 ms, which a snapshot does not owe

    folder.mkdir(mode=0o700, exist_ok=True)
    destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.move(source, destination)


@contextlib.contextmanager
def not_being_built(cache_dir: Path, path: str) -> Iterator[bool]:
    """Hold torch's build lock of the file at ``path``; yields False, without waiting, if a live process has it.

    Where no lock file exists nobody builds, and who comes later sees the file and does not build it.
    """
    lock = cache_dir / "locks" / f"{path.rpartition('/')[2].partition('.')[0]}.lock"
    access = os.O_RDWR if os.access(lock, os.W_OK) else os.O_RDONLY  # NFS wants the first, a read-only mount the other
    try:
        fd = os.open(lock, access | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):  # torch cannot lock under too long a name either
            raise
        yield True
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _problem(cache_dir: Path, path: str, kind: Kind, status: os.stat_result, *, deep: bool) -> str | None:
    if deep and (reason := _metadata_problem(status)):
        return reason
    if not stat.S_ISREG(status.st_mode):
        return None
    shared_object = path.endswith(".so")
    if status.st_size > 0 and not shared_object and not deep:
        return None
    try:
        with not_being_built(cache_dir, path) if shared_object else contextlib.nullcontext(True) as idle:
            return content_problem(cache_dir / path, path, kind, deep=deep) if idle else None
    except FileNotFoundError:
        return None  # another process removed it meanwhile


def content_problem(file: Path, path: str, kind: Kind, *, deep: bool) -> str | None:
    """Why torch would trust the content of ``file`` (a regular file, ``path`` in its cache) wrongly, or None.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as handle:
        size = os.fstat(fd).st_size
        if path.endswith(".so"):
            return elf_problem(handle, size)
        if size == 0:
            return "empty: its writer was killed"
        if not deep:
            return None
        if is_self_named(path, kind):
            return None if name_matches(path, kind, handle.read()) else _misnamed(path, kind)
        if kind in (Kind.AUTOTUNE, Kind.GEMM, Kind.KEYS):
            return None if _is_json(handle.read()) else "no valid JSON"
    return None


def _misnamed(path: str, kind: Kind) -> str:
    if kind in GRAPHS and not SELF_NAME.fullmatch(path.rpartition("/")[2]):
        return "a foreign pickle: torch names entries by their checksum, and executes what lies here"
    return "its content does not hash to its name"


def _metadata_problem(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid not in (os.geteuid(), 0):
        return f"owned by user {status.st_uid}: everything in a cache is executed"
    if status.st_mode & stat.S_IWOTH:
        return "writable by everybody: everything in a cache is executed"
    return None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
