"""Bad files of a cache that nobody snapshotted, and their quarantine, so that torch builds them again.

In: a cache directory, possibly in use. Out: the files that torch would trust wrongly, moved aside on request.
The quick check opens only shared objects, and of those only the headers; ``deep`` reads everything whose name is its
checksum. A shared object that some process is building right now is left alone: its lock is torch's own
(``CppCodeCache`` in ``torch/_inductor/codecache.py``). Nothing is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cache_tools.elf import elf_problem
from cache_tools.errors import storage_errors
from cache_tools.kinds import NOT_KEPT, Kind, is_self_named, kind_of, name_matches
from cache_tools.scan import walk


@dataclass(frozen=True, kw_only=True, slots=True)
class BadFile:
    """One file that should not be used."""

    path: str
    """Relative to the cache directory, with ``/``."""
    kind: Kind
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    """What ``quarantine`` did."""

    folder: Path | None
    """Where the files are now; None if none was moved."""
    moved: tuple[BadFile, ...]
    busy: tuple[BadFile, ...]
    """Left alone: a live process is building them. What is healthy or gone by now is in neither."""


def check_live(cache_dir: Path, *, deep: bool = False) -> tuple[BadFile, ...]:
    """The bad files under ``cache_dir``, sorted by path; none where there is no such directory yet.

    Raises:
        UsageError: a directory cannot be listed.
        StorageError: a file cannot be read.
    """
    bad: list[BadFile] = []
    with storage_errors(f"checking {cache_dir}"):
        for path, status in walk(cache_dir):
            kind = kind_of(path)
            if status is None or kind in NOT_KEPT:
                continue
            if reason := _problem(cache_dir, path, kind, status, deep=deep):
                bad.append(BadFile(path=path, kind=kind, reason=reason))
    return tuple(sorted(bad, key=lambda file: file.path))


def quarantine(cache_dir: Path, bad: Iterable[BadFile]) -> Quarantine:
    """Move ``bad`` files to ``<cache_dir>.quarantine-<stamp>/``; those being built or healthy by now stay.

    Raises:
        StorageError: the file system refuses.
    """
    cache_dir = Path(os.path.abspath(cache_dir))  # "." has no name to put a suffix on
    folder = cache_dir.with_name(f"{cache_dir.name}.quarantine-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    moved: list[BadFile] = []
    busy: list[BadFile] = []
    with storage_errors(f"moving bad files to {folder}"):
        for file in bad:
            with not_being_built(cache_dir, file.path) as idle:
                if not idle:
                    busy.append(file)
                elif _is_still_bad(cache_dir, file):
                    _move(cache_dir / file.path, folder / file.path, folder)
                    moved.append(file)
    return Quarantine(folder=folder if moved else None, moved=tuple(moved), busy=tuple(busy))


def _is_still_bad(cache_dir: Path, file: BadFile) -> bool:
    try:
        status = (cache_dir / file.path).lstat()
        metadata = _metadata_problem(status)
        return bool(metadata or content_problem(cache_dir / file.path, file.path, file.kind, deep=True))
    except FileNotFoundError:
        return False


def _move(source: Path, destination: Path, folder: Path) -> None:
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
    except FileNotFoundError:
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
            return None if name_matches(path, kind, handle.read()) else "its content does not hash to its name"
        if kind in (Kind.AUTOTUNE, Kind.GEMM):
            return None if _is_json(handle.read()) else "no valid JSON"
    return None


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
