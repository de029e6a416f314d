"""Reading the files of a live cache into a store.

In: a cache directory, a ``BlobWriter``. Out: a ``Taken``: manifest entries, and why other files were left out. Kernels
that a graph entry holds (bundled.py) are not even listed. A file whose status is the remembered one and whose blob is
held is not opened. Others are read once, in this thread; large ones in pieces, by a helper, and twice (for their
digest, then if it is new) where their name does not tell the digest. It makes nothing visible.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools import stamps
from cache_tools.blobwriter import BlobWriter
from cache_tools.bundled import folders_of, kernels_in, without_kernels
from cache_tools.elf import elf_problem
from cache_tools.kinds import GRAPHS, Kind, digest_matches, is_self_named, name_matches, named_digests
from cache_tools.live import not_being_built
from cache_tools.manifest import MAX_ENTRY_BYTES, ManifestEntry
from cache_tools.packs import CHUNK, LARGE
from cache_tools.relocate import is_group, roots_of, tokenise
from cache_tools.scan import Entry, Scan, scan
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
_KERNELS = 6
"""Where the stamp's row of a graph entry has its kernels; a row of an older edition ends before."""
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
    kernels_of: dict[str, frozenset[str]]
    """Path of a graph entry that was taken → the Triton kernels it holds."""
    passed_over: int
    """Kernels whose files were left out since a graph entry that was taken holds them."""
    blobs_written: int
    skipped: Counter[str]


def remember(store: Store, cache_dir: Path, present: Sequence[Entry], taken: Taken) -> None:
    """Let the next snapshot of ``cache_dir`` know the files that were taken; forget those that are gone."""
    there = {entry.path for entry in present}
    if not taken.read and taken.known.keys() <= there:
        return
    rows = {name: row for name, row in taken.known.items() if name in there}
    for entry in taken.entries:
        if status := taken.read.get(entry.path):
            rows[entry.path] = [*status, entry.sha256, entry.size]
            if entry.kind in GRAPHS:
                rows[entry.path].append(",".join(sorted(taken.kernels_of[entry.path])))
    stamps.write(stamps.file_stamp(store.root, cache_dir), rows)


class Intake:
    """Reads the files of one cache directory into one writer; a large file in any thread."""

    def __init__(
        self,
        store: Store,
        writer: BlobWriter,
        cache_dir: Path,
        *,
        scanner: Scanner | None = None,
        only: frozenset[str] | None = None,
        all_kernels: bool = False,
    ) -> None:
        """``only``: paths to take. ``all_kernels``: also those kernels that graph entries hold."""
        self._writer, self._cache_dir, self._scanner = writer, cache_dir, scanner
        self._only, self._all_kernels = only, all_kernels
        self._known = stamps.read(stamps.file_stamp(store.root, cache_dir))
        self._roots = roots_of(cache_dir)
        self._begun: dict[str, Future[ManifestEntry | str]] = {}
        self._kernels: dict[str, tuple[Status, frozenset[str]]] = {}
        """Path of a graph entry → the kernels it held while it had that status."""
        self._held: set[str] = set()
        """Folders of kernels that graph entries hold."""
        self._passed_over = 0
        self._looked_at: dict[str, Status] = {}
        """Graph entries in which the scanner has looked for secrets, and their status then."""
        self._read: dict[str, Status] = {}
        self._new: list[str] = []
        """Paths whose content the store had not."""

    def scan(self) -> Scan:
        """List the directory, but for the folders of kernels that graph entries hold; begin to read large entries."""
        found = scan(self._cache_dir, on_graph=self._meet, pass_over=self._held.__contains__)
        self._passed_over = found.passed_over
        return found

    def take(self, entries: Sequence[Entry], on_progress: Progress | None = None) -> Taken:
        """Read ``entries`` of the scan. A kernel is left out only where a graph entry that is taken holds it."""
        results = self._keep_all(entries, on_progress)
        for job in [job for path, job in self._begun.items() if path not in results and not job.cancel()]:
            job.result()  # of an entry that has gone since it was met
        graphs = self._graphs(results)
        kept = _folders(graphs.values())
        if self._held - kept:  # an entry turned out to be damaged: its kernels are all there is of them
            found = scan(self._cache_dir, pass_over=kept.__contains__)
            self._passed_over = found.passed_over
            more = [entry for entry in found.entries if entry.kind is Kind.TRITON and entry.path not in results]
            results |= self._keep_all(more, None)
        return Taken(
            entries=tuple(each for path in sorted(results) if not isinstance(each := results[path], str)),
            read=self._read,
            known=self._known,
            kernels_of=graphs,
            passed_over=self._passed_over,
            blobs_written=len(self._new),
            skipped=Counter(each for each in results.values() if isinstance(each, str)),
        )

    def _meet(self, entry: Entry) -> None:
        if self._only is None or entry.path in self._only:
            found = self._kernels_of(entry)
            self._begin(entry)  # one reading is enough now that the secrets have been looked for
            if found and self._only is None and not self._all_kernels:
                self._held |= _folders([found])

    def _graphs(self, results: dict[str, ManifestEntry | str]) -> dict[str, frozenset[str]]:
        """Path → kernels of each graph entry that is taken; what changed since it was met is looked at again."""
        graphs: dict[str, frozenset[str]] = {}
        for path, kept in results.items():
            if isinstance(kept, ManifestEntry) and kept.kind in GRAPHS:
                status = self._read.get(path) or _status_in(self._known[path])
                now = Entry(path, kept.kind, kept.size, kept.executable, status)
                names = self._kernels_of(now)
                if names is None:
                    results[path] = "changing"
                else:
                    graphs[path] = names
        return graphs

    def _kernels_of(self, entry: Entry) -> frozenset[str] | None:
        """Looks for secrets on the way. None if the file cannot be read as it was listed, which ``_keep`` judges."""
        status, names = self._kernels.get(entry.path, (None, frozenset()))
        if status != entry.status:
            found = self._read_kernels(entry)
            if found is None:
                return None
            self._kernels[entry.path] = (entry.status, found)
            return found
        return names

    def _read_kernels(self, entry: Entry) -> frozenset[str] | None:
        row = self._known.get(entry.path)
        if row is not None and _status_in(row) == entry.status and len(row) > _KERNELS:
            return frozenset(str(row[_KERNELS]).split(",")) - {""}
        if entry.size > MAX_ENTRY_BYTES:
            return None
        with contextlib.suppress(OSError):
            fd = _open(f"{self._cache_dir}/{entry.path}")
            try:
                text = without_kernels(lambda at, length: os.pread(fd, length, at), entry.size)
                found = kernels_in(self._scanner.through(entry.path, entry.kind, text) if self._scanner else text)
                if stamps.status_of(os.fstat(fd)) != entry.status:
                    return None
            finally:
                os.close(fd)
            self._looked_at[entry.path] = entry.status
            return found
        return None

    def _begin(self, entry: Entry) -> None:
        """Let a helper read a large file from now on."""
        if entry.size >= LARGE and entry.path not in self._begun and not self._remembered(entry):
            self._begun[entry.path] = self._writer.beside(functools.partial(self._keep, entry))

    def _keep_all(self, entries: Sequence[Entry], on_progress: Progress | None) -> dict[str, ManifestEntry | str]:
        """Path → what ``_keep`` says; large files are the helpers' work, and this thread's once the others are done."""
        total, done = sum(entry.size for entry in entries), 0
        results: dict[str, ManifestEntry | str] = {}
        for entry in entries:
            self._begin(entry)
        small = [entry for entry in entries if entry.path not in self._begun]
        large = {entry.path: entry for entry in entries if entry.path in self._begun}
        last_first = [large[path] for path in reversed(self._begun) if path in large]
        for entry in (*small, *last_first):
            job = self._begun.get(entry.path)
            if job is not None and not job.cancel():
                results[entry.path] = job.result()
            else:
                results[entry.path] = self._remembered(entry) or self._keep(entry)
            done += entry.size
            if on_progress:
                on_progress(done, total)
        return results

    def _remembered(self, entry: Entry) -> ManifestEntry | None:
        row = self._known.get(entry.path)
        if row is None or _status_in(row) != entry.status or (entry.kind in GRAPHS and len(row) <= _KERNELS):
            return None
        digest, size = str(row[4]), int(row[5])
        if not self._writer.holds(bytes.fromhex(digest)):
            return None
        return ManifestEntry(entry.path, entry.kind, size, digest, entry.executable)

    def _keep(self, entry: Entry) -> ManifestEntry | str:
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
                fd = _open(path)
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
        if self._scanner and self._looked_at.get(entry.path) != expected:
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
        try:
            streamed = self._streamed(entry, fd, size, looked_at=self._looked_at.get(entry.path) == expected)
        except ValueError:  # it changed between two readings
            return None
        if not _is_settled(fd, expected):
            return None
        if streamed is None:
            return "damaged"
        digest, new = streamed
        return self._kept(entry, digest, size, expected, new=new)

    def _streamed(self, entry: Entry, fd: int, size: int, *, looked_at: bool) -> tuple[bytes, bool] | None:
        """Digest, and whether the store had it not; None if it is not what the name says.

        A graph entry's name tells the digest, so that one reading is enough where the store has it not.

        Raises:
            ValueError: two readings differ.
        """
        if looked_at:
            with contextlib.suppress(ValueError):
                if digest := self._writer.add_chunks(_chunks(fd), named_digests(entry.path), size):
                    return digest, True
        scanner = None if looked_at else self._scanner
        content = hashlib.sha256()
        for chunk in scanner.through(entry.path, entry.kind, _chunks(fd)) if scanner else _chunks(fd):
            content.update(chunk)
        digest = content.digest()
        if not _is_named_by(entry, digest):
            return None
        return digest, self._writer.add_chunks(_chunks(fd), (digest,), size) is not None

    def _kept(self, entry: Entry, digest: bytes, size: int, status: Status, *, new: bool) -> ManifestEntry:
        self._read[entry.path] = status
        if new:
            self._new.append(entry.path)
        return ManifestEntry(entry.path, entry.kind, size, digest.hex(), entry.executable)


def _status_in(row: list[int | str]) -> Status:
    inode, size, modified, changed = map(int, row[:4])
    return inode, size, modified, changed


def _folders(kernels: Iterable[frozenset[str]]) -> set[str]:
    return {folder for names in kernels for name in names for folder in folders_of(name)}


def _open(path: str) -> int:
    # NONBLOCK: what was a file when it was listed may be a pipe by now, which would wait for a writer.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


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
