"""Taking the files of a live cache into a store.

In: a cache directory, a ``BlobWriter``. Out: a ``Taken``: manifest entries, and why other files were left out. Kernels
that a graph entry holds (bundled.py) are not even listed, so that graph entries are read while the directory is listed:
helpers read some entries ahead, this thread looks into them one by one.
A file whose status is the remembered one and whose blob is held is not opened. Others are read (filereader.py) in this
thread, large ones by helpers. It makes nothing visible.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools import stamps
from cache_tools.blobwriter import BlobWriter
from cache_tools.bundled import folders_of
from cache_tools.filereader import FileReader
from cache_tools.kinds import GRAPHS, Kind
from cache_tools.manifest import ManifestEntry
from cache_tools.packs import LARGE
from cache_tools.scan import Entry, Scan, scan
from cache_tools.stamps import Status
from cache_tools.store import Store
from envguard.frozen import Frozen

if TYPE_CHECKING:
    from cache_tools.secrets import Scanner

_KERNELS = 6
"""Where the stamp's row of a graph entry has its kernels; a row of an older edition ends before."""
_AHEAD = 4
"""Graph entries that may have been read and not been looked at, each of less than ``LARGE`` bytes."""
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
        self._writer, self._cache_dir = writer, cache_dir
        self._reader = FileReader(writer, cache_dir, scanner)
        self._only, self._all_kernels = only, all_kernels
        self._known = stamps.read(stamps.file_stamp(store.root, cache_dir))
        self._begun: dict[str, Future[ManifestEntry | str]] = {}
        self._kept: dict[str, ManifestEntry] = {}
        """Small graph entries that were kept as they were met, by path; others may be whole once it is their turn."""
        self._coming: deque[tuple[Entry, Future[tuple[bytes, bytes] | None] | None]] = deque()
        """Small graph entries that were met and are not kept yet."""
        self._held: set[str] = set()
        """Folders of kernels that graph entries hold."""
        self._passed_over = 0

    def scan(self) -> Scan:
        """List the directory, but for the folders of kernels that graph entries hold; read those entries meanwhile."""
        found = scan(self._cache_dir, on_graph=self._meet, pass_over=self._is_held)
        self._take_all()
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
            read=self._reader.read,
            known=self._known,
            kernels_of=graphs,
            passed_over=self._passed_over,
            blobs_written=len(self._reader.new),
            skipped=Counter(each for each in results.values() if isinstance(each, str)),
        )

    def _meet(self, entry: Entry) -> None:
        """Take a graph entry that the scan came to; a small one once others have been met, which a helper may use."""
        if self._only is not None and entry.path not in self._only:
            return
        if entry.size >= LARGE:
            self._learn(entry)
            self._begin(entry)  # one reading is enough now that the secrets have been looked for
        elif self._reader.read.get(entry.path) == entry.status or self._remembered(entry):
            self._learn(entry)
        else:
            try:
                reading = self._writer.beside(functools.partial(self._reader.fetch, entry))
            except RuntimeError:  # no thread can be started: this one reads it
                reading = None
            self._coming.append((entry, reading))
            if len(self._coming) > _AHEAD:
                self._take_first()

    def _take_first(self) -> None:
        """Keep the first of the entries that are coming, in one reading with its kernels and secrets."""
        entry, reading = self._coming.popleft()
        fetched = self._reader.fetch(entry) if reading is None or reading.cancel() else reading.result()
        kept = self._reader.keep_fetched(entry, *fetched) if fetched else self._reader.keep(entry)
        if isinstance(kept, ManifestEntry):
            self._kept[entry.path] = kept
        self._learn(entry)

    def _learn(self, entry: Entry) -> None:
        """Which kernels the graph entry holds."""
        found = self._kernels_of(entry)
        if found and self._only is None and not self._all_kernels:
            self._held |= _folders([found])

    def _is_held(self, folder: str) -> bool:
        """Whether graph entries hold all that the folder does; asked once they have been met."""
        if folder.startswith("triton/"):
            self._take_all()
        return folder in self._held

    def _take_all(self) -> None:
        while self._coming:
            self._take_first()

    def _graphs(self, results: dict[str, ManifestEntry | str]) -> dict[str, frozenset[str]]:
        """Path → kernels of each graph entry that is taken; what changed since it was met is looked at again."""
        graphs: dict[str, frozenset[str]] = {}
        for path, kept in results.items():
            if isinstance(kept, ManifestEntry) and kept.kind in GRAPHS:
                status = self._reader.read.get(path) or _status_in(self._known[path])
                now = Entry(path, kept.kind, kept.size, kept.executable, status)
                names = self._kernels_of(now)
                if names is None:
                    results[path] = "changing"
                else:
                    graphs[path] = names
        return graphs

    def _kernels_of(self, entry: Entry) -> frozenset[str] | None:
        """None if the file cannot be read as it was listed."""
        row = self._known.get(entry.path)
        if row is not None and _status_in(row) == entry.status and len(row) > _KERNELS:
            return frozenset(str(row[_KERNELS]).split(",")) - {""}
        return self._reader.kernels(entry)

    def _begin(self, entry: Entry) -> None:
        """Let a helper read a large file from now on."""
        if entry.size >= LARGE and entry.path not in self._begun and not self._remembered(entry):
            self._begun[entry.path] = self._writer.beside(functools.partial(self._reader.keep, entry))

    def _keep_all(self, entries: Sequence[Entry], on_progress: Progress | None) -> dict[str, ManifestEntry | str]:
        """Path → what ``FileReader.keep`` says; this thread helps with large files once it has done the others."""
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
                kept = self._kept.get(entry.path) or self._remembered(entry)
                results[entry.path] = kept or self._reader.keep(entry)
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


def _status_in(row: list[int | str]) -> Status:
    inode, size, modified, changed = map(int, row[:4])
    return inode, size, modified, changed


def _folders(kernels: Iterable[frozenset[str]]) -> set[str]:
    return {folder for names in kernels for name in names for folder in folders_of(name)}
