"""Reading the files of a live cache into a store.

In: entries of a scan, a ``BlobWriter``. Out: a ``Taken``: manifest entries, and why other files were left out. A file
whose status is the remembered one and whose blob is held is not opened. Others are read once by a few threads; large
ones in pieces, twice: for their digest, then if it is new. It makes nothing visible.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cache_tools import stamps
from cache_tools.blobwriter import BlobWriter
from cache_tools.elf import elf_problem
from cache_tools.kinds import Kind, digest_matches, is_self_named, name_matches
from cache_tools.live import not_being_built
from cache_tools.manifest import MAX_ENTRY_BYTES, ManifestEntry
from cache_tools.packs import CHUNK, LARGE
from cache_tools.relocate import is_group, tokenise
from cache_tools.scan import Entry
from cache_tools.stamps import Status
from cache_tools.store import Store

ATTEMPTS = 3
RETRY_SECONDS = 0.02
"""Writers rename complete files into place, so a file that changes under us has settled by then."""
BATCH = 64
"""Files that a thread takes at a time."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def workers() -> int:
    """Threads: hashing, compressing and waiting for the disk all leave the interpreter free."""
    return max(2, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What was read."""

    entries: tuple[ManifestEntry, ...]
    """In the order of the scan."""
    read: dict[str, Status]
    """Path → the status that a file had all the while it was read; files that were not opened are not in it."""
    known: dict[str, list[int | str]]
    """What was remembered before."""
    blobs_written: int
    skipped: Counter[str]


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: ManifestEntry
    new: bool
    status: Status | None
    """None: it was not opened."""


def take(
    store: Store, writer: BlobWriter, cache_dir: Path, wanted: Sequence[Entry], on_progress: Progress | None
) -> Taken:
    """Read ``wanted`` files of ``cache_dir`` into ``writer``."""
    known = stamps.read(stamps.file_stamp(store.root, cache_dir))
    total, done = sum(entry.size for entry in wanted), 0
    kept: dict[str, _Kept] = {}
    skipped: Counter[str] = Counter()
    unknown: list[Entry] = []
    for entry in wanted:
        if (same := _remembered(entry, known.get(entry.path), writer)) is not None:
            kept[entry.path] = same
            done += entry.size
        else:
            unknown.append(entry)
    batches = [unknown[at : at + BATCH] for at in range(0, len(unknown), BATCH)]
    with ThreadPoolExecutor(workers()) as pool:
        reading = pool.map(lambda batch: [_keep(writer, cache_dir, entry) for entry in batch], batches)
        for batch, results in zip(batches, reading, strict=True):
            for entry, result in zip(batch, results, strict=True):
                done += entry.size
                if isinstance(result, _Kept):
                    kept[entry.path] = result
                else:
                    skipped[result] += 1
            if on_progress:
                on_progress(done, total)
    ordered = [kept[entry.path] for entry in wanted if entry.path in kept]
    return Taken(
        entries=tuple(one.entry for one in ordered),
        read={one.entry.path: one.status for one in ordered if one.status},
        known=known,
        blobs_written=sum(one.new for one in ordered),
        skipped=skipped,
    )


def remember(store: Store, cache_dir: Path, present: Sequence[Entry], taken: Taken) -> None:
    """Let the next snapshot of ``cache_dir`` know the files that were taken; forget those that are gone."""
    there = {entry.path for entry in present}
    if not taken.read and taken.known.keys() <= there:
        return
    rows = {name: row for name, row in taken.known.items() if name in there}
    for entry in taken.entries:
        if status := taken.read.get(entry.path):
            rows[entry.path] = [*status, entry.sha256, entry.size]
    stamps.write(stamps.file_stamp(store.root, cache_dir), rows)


def _remembered(entry: Entry, row: list[int | str] | None, writer: BlobWriter) -> _Kept | None:
    if row is None or tuple(row[:4]) != entry.status:
        return None
    digest, size = str(row[4]), int(row[5])
    if not writer.holds(bytes.fromhex(digest)):
        return None
    kept = ManifestEntry(path=entry.path, kind=entry.kind, size=size, sha256=digest, executable=entry.executable)
    return _Kept(kept, False, None)


def _keep(writer: BlobWriter, cache_dir: Path, entry: Entry) -> _Kept | str:
    """Store one file, or say why it is left out."""
    if entry.size > MAX_ENTRY_BYTES:
        return "too large"
    if not entry.path.endswith(".so"):
        return _keep_settled(writer, cache_dir, entry)
    with not_being_built(cache_dir, entry.path) as idle:
        return _keep_settled(writer, cache_dir, entry) if idle else "being built"


def _keep_settled(writer: BlobWriter, cache_dir: Path, entry: Entry) -> _Kept | str:
    path = f"{cache_dir}/{entry.path}"
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(RETRY_SECONDS)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return "vanished"
        try:
            before = os.fstat(fd)
            if before.st_size >= LARGE and entry.kind is not Kind.SOURCE and not is_group(entry.path):
                outcome = _large(writer, entry, fd, before)
            else:
                outcome = _small(writer, cache_dir, entry, fd, before)
        finally:
            os.close(fd)
        if outcome is not None:
            return outcome
    return "changing"


def _small(writer: BlobWriter, cache_dir: Path, entry: Entry, fd: int, before: os.stat_result) -> _Kept | str | None:
    """None if the file changes."""
    data = _read(fd, before.st_size)
    status = _settled(fd, before)
    if status is None or len(data) != before.st_size:
        return None
    if not data:
        return "empty"
    if entry.path.endswith(".so") and elf_problem(io.BytesIO(data), len(data)):
        return "cut"
    if (
        entry.kind is Kind.SOURCE
        and is_self_named(entry.path, entry.kind)
        and not name_matches(entry.path, entry.kind, data)
    ):
        return "damaged"
    if is_group(entry.path):
        moved = tokenise(data, cache_dir)
        if not moved:
            return "points outside"
        data = moved
    digest = hashlib.sha256(data).digest()
    if not _is_named_by(entry, digest):
        return "damaged"
    new = writer.add(data, digest)
    return _Kept(_entry(entry, digest, len(data)), new, status)


def _large(writer: BlobWriter, entry: Entry, fd: int, before: os.stat_result) -> _Kept | str | None:
    """None if the file changes."""
    if entry.path.endswith(".so"):
        with os.fdopen(os.dup(fd), "rb") as handle:
            if elf_problem(handle, before.st_size):
                return "cut"
    content = hashlib.sha256()
    for chunk in _chunks(fd):
        content.update(chunk)
    digest = content.digest()
    if _settled(fd, before) is None:
        return None
    if not _is_named_by(entry, digest):
        return "damaged"
    try:
        new = writer.add_chunks(_chunks(fd), digest, before.st_size)
    except ValueError:  # it changed between the two readings
        return None
    status = _settled(fd, before)
    return status and _Kept(_entry(entry, digest, before.st_size), new, status)


def _read(fd: int, size: int) -> bytes:
    """The content, of ``size`` bytes unless it is changing."""
    data = os.read(fd, size + 1)
    while len(data) <= size and (more := os.read(fd, size + 1 - len(data))):
        data += more
    return data


def _chunks(fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(fd, CHUNK, offset):
        offset += len(chunk)
        yield chunk


def _settled(fd: int, before: os.stat_result) -> Status | None:
    """The file's status if it was the same all the while and a write from now on would change it."""
    status = stamps.status_of(os.fstat(fd))
    same = status == stamps.status_of(before)
    return status if same and not 0 <= time.time_ns() - status[2] < stamps.TICK_NS else None


def _is_named_by(entry: Entry, digest: bytes) -> bool:
    return entry.kind not in (Kind.FXGRAPH, Kind.AOTAUTOGRAD) or digest_matches(entry.path, digest)


def _entry(entry: Entry, digest: bytes, size: int) -> ManifestEntry:
    return ManifestEntry(path=entry.path, kind=entry.kind, size=size, sha256=digest.hex(), executable=entry.executable)
