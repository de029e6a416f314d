"""Reading the files of a live cache into a store.

In: entries of a scan, a ``BlobWriter``. Out: a ``Taken``: manifest entries, and why other files were left out. A file
whose status is the remembered one and whose blob is held is not opened. Others are read once, in this thread; large
ones by a helper, in pieces, twice: for their digest, then if it is new. It makes nothing visible.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools import stamps
from cache_tools.blobwriter import BlobWriter
from cache_tools.elf import elf_problem
from cache_tools.kinds import GRAPHS, Kind, digest_matches, is_self_named, name_matches
from cache_tools.live import not_being_built
from cache_tools.manifest import MAX_ENTRY_BYTES, ManifestEntry
from cache_tools.packs import CHUNK, LARGE
from cache_tools.relocate import is_group, roots_of, tokenise
from cache_tools.scan import Entry
from cache_tools.stamps import Status
from cache_tools.store import Store
from envguard.frozen import Frozen

if TYPE_CHECKING:
    from cache_tools.secrets import Scanner

ATTEMPTS = 3
RETRY_SECONDS = 0.02
"""Writers rename complete files into place, so a file that changes under us has settled by then."""
_GONE = {errno.ENOENT: "vanished", errno.ENOTDIR: "vanished", errno.ELOOP: "link", errno.ENXIO: "not a file"}
"""What it means when a file that was listed cannot be opened; ENXIO: a socket."""
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class Taken(Frozen):
    """What was read."""

    entries: tuple[ManifestEntry, ...]
    """In the order of the scan."""
    read: dict[str, Status]
    """Path → the status that a file had all the while it was read; files that were not opened are not in it."""
    known: dict[str, list[int | str]]
    """What was remembered before."""
    blobs_written: int
    skipped: Counter[str]


def take(
    store: Store,
    writer: BlobWriter,
    cache_dir: Path,
    wanted: Sequence[Entry],
    scanner: Scanner | None,
    on_progress: Progress | None,
) -> Taken:
    """Read ``wanted`` files of ``cache_dir`` into ``writer``; ``scanner`` looks at what is read."""
    known = stamps.read(stamps.file_stamp(store.root, cache_dir))
    total, done = sum(entry.size for entry in wanted), 0
    results: list[ManifestEntry | str | Future[ManifestEntry | str]] = []
    entries: list[ManifestEntry] = []
    skipped: Counter[str] = Counter()
    reading = _Reading(writer, cache_dir, scanner)
    for entry in wanted:
        if remembered := _remembered(entry, known.get(entry.path), writer):
            results.append(remembered)
        elif entry.size >= LARGE:
            results.append(writer.beside(functools.partial(reading.keep, entry)))
        else:
            results.append(reading.keep(entry))
        done += entry.size
        if on_progress:
            on_progress(done, total)
    for each in results:
        result = each.result() if isinstance(each, Future) else each
        if isinstance(result, str):
            skipped[result] += 1
        else:
            entries.append(result)
    return Taken(
        entries=tuple(entries),
        read=reading.read,
        known=known,
        blobs_written=len(reading.new),
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


def _remembered(entry: Entry, row: list[int | str] | None, writer: BlobWriter) -> ManifestEntry | None:
    if row is None or tuple(row[:4]) != entry.status:
        return None
    digest, size = str(row[4]), int(row[5])
    if not writer.holds(bytes.fromhex(digest)):
        return None
    return ManifestEntry(entry.path, entry.kind, size, digest, entry.executable)


class _Reading:
    """Reads the files of one cache directory into one writer; a large file in any thread."""

    def __init__(self, writer: BlobWriter, cache_dir: Path, scanner: Scanner | None) -> None:
        self._writer, self._cache_dir, self._scanner = writer, cache_dir, scanner
        self._roots = roots_of(cache_dir)
        self.read: dict[str, Status] = {}
        self.new: list[str] = []
        """Paths whose content the store had not."""

    def keep(self, entry: Entry) -> ManifestEntry | str:
        """Store one file, or say why it is left out."""
        if entry.size > MAX_ENTRY_BYTES:
            return "too large"
        if not entry.path.endswith(".so"):
            return self._keep_settled(entry)
        with not_being_built(self._cache_dir, entry.path) as idle:
            return self._keep_settled(entry) if idle else "being built"

    def _keep_settled(self, entry: Entry) -> ManifestEntry | str:
        path = f"{self._cache_dir}/{entry.path}"
        expected = entry.status  # since it was listed
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(RETRY_SECONDS)
            try:
                # NONBLOCK: what was a file when it was listed may be a pipe by now, which would wait for a writer.
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                if reason := _GONE.get(error.errno or 0):
                    return reason
                raise
            try:
                if attempt:
                    status = os.fstat(fd)
                    expected = stamps.status_of(status)
                    if not stat.S_ISREG(status.st_mode):
                        return "not a file"
                    if expected[1] > MAX_ENTRY_BYTES:
                        return "too large"
                if expected[1] >= LARGE and entry.kind is not Kind.SOURCE and not is_group(entry.path):
                    outcome = self._large(entry, fd, expected)
                else:
                    outcome = self._small(entry, fd, expected)
            except OSError as error:
                if error.errno not in (errno.EISDIR, errno.EAGAIN, errno.ESPIPE):  # a folder or a pipe by now
                    raise
                outcome = None
            finally:
                os.close(fd)
            if outcome is not None:
                return outcome
        return "changing"

    def _small(self, entry: Entry, fd: int, expected: Status) -> ManifestEntry | str | None:
        """None if the file changes."""
        data = _read(fd, expected[1])
        if not _is_settled(fd, expected) or len(data) != expected[1]:
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
            moved = tokenise(data, self._roots)
            if not moved:
                return "points outside"
            data = moved
        digest = hashlib.sha256(data).digest()
        if not _is_named_by(entry, digest):
            return "damaged"
        if self._scanner:
            self._scanner.look(entry.path, entry.kind, data)
        new = self._writer.add(data, digest)
        return self._kept(entry, digest, len(data), expected, new=new)

    def _large(self, entry: Entry, fd: int, expected: Status) -> ManifestEntry | str | None:
        """None if the file changes."""
        size = expected[1]
        if entry.path.endswith(".so"):
            with os.fdopen(os.dup(fd), "rb") as handle:
                if elf_problem(handle, size):
                    return "cut"
        content = hashlib.sha256()
        for chunk in self._scanner.through(entry.path, entry.kind, _chunks(fd)) if self._scanner else _chunks(fd):
            content.update(chunk)
        digest = content.digest()
        if not _is_settled(fd, expected):
            return None
        if not _is_named_by(entry, digest):
            return "damaged"
        try:
            new = self._writer.add_chunks(_chunks(fd), digest, size)
        except ValueError:  # it changed between the two readings
            return None
        return self._kept(entry, digest, size, expected, new=new) if _is_settled(fd, expected) else None

    def _kept(self, entry: Entry, digest: bytes, size: int, status: Status, *, new: bool) -> ManifestEntry:
        self.read[entry.path] = status
        if new:
            self.new.append(entry.path)
        return ManifestEntry(entry.path, entry.kind, size, digest.hex(), entry.executable)


def _read(fd: int, size: int) -> bytes:
    """The content, of ``size`` bytes; fewer if it was cut. What was appended meanwhile shows in its status."""
    data = os.read(fd, size)
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data


def _chunks(fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(fd, CHUNK, offset):
        offset += len(chunk)
        yield chunk


def _is_settled(fd: int, expected: Status) -> bool:
    """Whether the file was the same all the while and a write from now on would change its status."""
    same = stamps.status_of(os.fstat(fd)) == expected
    return same and not 0 <= time.time_ns() - expected[2] < stamps.TICK_NS


def _is_named_by(entry: Entry, digest: bytes) -> bool:
    return entry.kind not in GRAPHS or digest_matches(entry.path, digest)
