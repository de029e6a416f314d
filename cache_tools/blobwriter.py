"""Adding blobs to a store: only those that it does not hold intact, all made durable together.

In: contents and their digests. Out: new packs, at ``commit``. What a store holds is believed where a stamp says that
the pack was written or checked here and its file has not changed since, and is checked bit by bit elsewhere. A damaged
pack is replaced once all that it should hold is intact in other packs; else it stays, for ``verify`` to name.
Contents are compressed and written a batch at a time, by threads while the caller reads on, and by the caller when all
threads have enough to do. Large ones stream into packs of their own, so that neither waits for the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from cache_tools import blobs, stamps
from cache_tools.errors import CorruptError
from cache_tools.packs import PackReader, PackWriter
from envguard import fsops

if TYPE_CHECKING:
    from cache_tools.store import Store

log = logging.getLogger(__name__)
Result = TypeVar("Result")

BATCH_BYTES = 4 << 20
"""Of contents, compressed at once: without the interpreter's lock, for which small pieces would wait more than work."""
_LARGE_PACKS = 2
"""Large contents that are compressed at once: as many packs for each snapshot that has any."""
_WAITING = 2
"""Batches that wait for a helper, so that none of them runs dry while the caller packs one."""


def workers() -> int:
    """Threads worth having, the caller's among them."""
    return max(2, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2))


class BlobWriter:
    """See ``Store.adding``; for one thread, except where it is said."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "blobs"
        self._packs = PackWriter(self._folder)
        self._large = [PackWriter(self._folder) for _ in range(_LARGE_PACKS)]
        self._free: queue.SimpleQueue[PackWriter] = queue.SimpleQueue()
        """Those of ``_large`` that no thread appends to."""
        for packs in self._large:
            self._free.put(packs)
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._added: set[bytes] = set()
        self._helpers = workers() - 1
        self._pool = ThreadPoolExecutor(self._helpers)
        self._packing: list[Future[None]] = []
        self._turn = threading.Lock()
        """Of the one that appends to the pack."""
        self._trusted: dict[str, stamps.Status] = {}
        self._bad: dict[str, set[bytes]] = {}
        """Pack → digests whose frames are damaged."""
        self._intact = self._check()

    def holds(self, digest: bytes) -> bool:
        """Whether the store, or this writer, has that content intact."""
        return digest in self._intact or digest in self._added

    def add(self, data: bytes, digest: bytes) -> bool:
        """Keep ``data``, whose sha256 is ``digest``; False if it is held already.

        Raises:
            OSError: this or an earlier content cannot be written.
        """
        if self.holds(digest):
            return False
        self._added.add(digest)
        self._batch.append((digest, data))
        self._batch_bytes += len(data)
        if self._batch_bytes >= BATCH_BYTES:
            self._hand_over()
        return True

    def add_chunks(self, chunks: Iterator[bytes], expected: Collection[bytes], size: int) -> bytes | None:
        """``add`` for a content too large for memory, from any thread, which may come to several digests.

        Returns:
            The digest; None if one of those ``expected`` is held already.

        Raises:
            ValueError: the pieces come to something else; nothing was added.
        """
        if any(self.holds(digest) for digest in expected):
            return None
        packs = self._free.get()
        try:
            digest = packs.add_chunks(expected, chunks, size)
        finally:
            self._free.put(packs)
        if digest:
            self._added.add(digest)
        return digest

    def beside(self, job: Callable[[], Result]) -> Future[Result]:
        """Let a helper do ``job``, which may add in pieces."""
        return self._pool.submit(job)

    def _hand_over(self) -> None:
        """Let a helper pack the batch; pack it here if enough of them wait."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        busy = [one for one in self._packing if not one.done()]
        for done in set(self._packing) - set(busy):
            done.result()
        self._packing = busy
        if len(busy) >= self._helpers + _WAITING:
            self._pack(batch)
        else:
            self._packing.append(self._pool.submit(self._pack, batch))

    def _pack(self, batch: list[tuple[bytes, bytes]]) -> None:
        contents: list[bytes | bytearray | memoryview] = [data for _, data in batch]
        packed = blobs.compressor().multi_compress_to_buffer(contents, threads=1)
        frames = [packed[at].tobytes() for at in range(len(packed))]
        digests = [hashlib.sha256(frame).digest() for frame in frames]
        with self._turn:
            for (digest, data), frame, frame_sha256 in zip(batch, frames, digests, strict=True):
                self._packs.add(digest, frame, len(data), frame_sha256)

    def commit(self) -> None:
        """Make everything added durable and visible."""
        if self._batch:
            self._pack(self._batch)
        for packing in self._packing:
            packing.result()
        superseded = self._rescue()
        sealed = [*self._packs.seal(), *(pack for packs in self._large for pack in packs.seal())]
        superseded += self._unreadable()
        for pack in sealed:
            self._trusted[pack.name] = stamps.status_of(pack.stat())
        # The same contents make the same pack: a new one may have taken the place of a damaged one.
        for name in set(superseded) - {pack.name for pack in sealed}:
            log.warning("%s was damaged; all it held is in other packs now", self._folder / name)
            fsops.unlink(self._folder / name, missing_ok=True)
            self._trusted.pop(name, None)
        if superseded:
            fsops.fsync_dir(self._folder)
            self._store.close()
        rows: dict[str, list[int | str]] = {name: list(status) for name, status in self._trusted.items()}
        if rows != self._remembered:
            stamps.write(stamps.pack_stamp(self._store.root), rows)
        self._store.index.expire()

    def close(self) -> None:
        """Remove what was not committed."""
        self._pool.shutdown(cancel_futures=True)
        self._packs.abandon()
        for packs in self._large:
            packs.abandon()

    def _check(self) -> set[bytes]:
        index = self._store.index
        self._remembered = stamps.read(stamps.pack_stamp(self._store.root))
        intact: set[bytes] = set()
        reader = PackReader(index)
        try:
            for name, places in index.packs.items():
                path = self._folder / name
                status = stamps.status_of(path.stat())
                if self._remembered.get(name) == list(status):
                    self._trusted[name] = status
                    intact.update(places)
                    continue
                bad = {digest for digest, place in places.items() if not reader.is_intact(place)}
                intact.update(places.keys() - bad)
                if bad:
                    self._bad[name] = bad
                elif stamps.is_settled(status, time.time_ns()):
                    self._trusted[name] = status
        finally:
            reader.close()
        for name in self._bad:  # nor believe the good frames of a bad pack: they move to a new one
            intact -= index.packs[name].keys() - self._held_outside(name)
        return intact

    def _held_outside(self, pack: str) -> set[bytes]:
        return {
            digest
            for name, places in self._store.index.packs.items()
            if name != pack
            for digest in places.keys() - self._bad.get(name, set())
        }

    def _rescue(self) -> list[str]:
        """Move the good frames of damaged packs to the new one; the packs of which nothing is missing then."""
        superseded: list[str] = []
        reader = PackReader(self._store.index)
        try:
            for name, bad in self._bad.items():
                if not all(self.holds(digest) for digest in bad):
                    continue
                for digest, place in self._store.index.packs[name].items():
                    if not self.holds(digest):
                        self._packs.add(digest, reader.frame(place), place.size)
                superseded.append(name)
        finally:
            reader.close()
        return superseded

    def _unreadable(self) -> list[str]:
        """Packs with a damaged index, if every blob of every manifest is held without them."""
        if not self._store.index.damaged:
            return []
        self._store.index.reload()  # another writer may have put a good one there, for a manifest that is to come
        damaged = [name for name in self._store.index.damaged if (self._folder / name).is_file()]
        try:
            for id_ in self._store.ids():
                for entry in self._store.read_manifest(id_).entries:
                    if not self.holds(bytes.fromhex(entry.sha256)):
                        return []
        except CorruptError as error:
            log.warning("damaged packs stay: %s", error)
            return []
        return damaged
