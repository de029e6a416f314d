"""The contents of many blobs, decompressed and checked ahead of whoever writes them.

In: a store and manifest entries of less than ``LARGE`` bytes. Out: each entry with its content, in the order in which
the contents lie in their packs. A batch is decompressed without the interpreter's lock by a thread, while the caller is
busy with the one before. What does not come out as it should is read again by ``Store.read_blob``, which finds another
copy or says what is wrong. Memory is bounded by what the entries say, whatever the frames claim.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import zstandard

from cache_tools import blobs
from cache_tools.blobwriter import BATCH_BYTES, workers
from cache_tools.manifest import ManifestEntry
from cache_tools.store import Store

Content = bytes | memoryview


def contents(store: Store, entries: Iterable[ManifestEntry]) -> Iterator[tuple[ManifestEntry, Content]]:
    """Each entry and its content, which has its digest and may be shorter than it says.

    Raises:
        CorruptError: a blob is missing, damaged, or longer than an entry says; the message names the file.
    """
    batches = _batches(store, entries)
    helpers = workers() - 1
    pending: deque[Future[list[tuple[ManifestEntry, Content]]]] = deque()
    with ThreadPoolExecutor(helpers) as pool:
        try:
            for batch in batches:
                pending.append(pool.submit(_read, store, batch))
                if len(pending) > helpers + 1:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(store: Store, entries: Iterable[ManifestEntry]) -> Iterator[list[ManifestEntry]]:
    places = store.index.places
    placed = [(places.get(bytes.fromhex(entry.sha256)), entry) for entry in entries]
    placed.sort(key=lambda one: (one[0].pack, one[0].offset) if one[0] else ("", 0))
    batch: list[ManifestEntry] = []
    size = 0
    for _, entry in placed:
        batch.append(entry)
        size += entry.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(store: Store, batch: Sequence[ManifestEntry]) -> list[tuple[ManifestEntry, Content]]:
    digests = [bytes.fromhex(entry.sha256) for entry in batch]
    try:
        frames: list[bytes | bytearray | memoryview] = [
            store.frame(digest, limit=entry.size) for digest, entry in zip(digests, batch, strict=True)
        ]
        sizes = struct.pack(f"={len(batch)}Q", *(entry.size for entry in batch))
        segments = blobs.decompressor().multi_decompress_to_buffer(frames, decompressed_sizes=sizes, threads=1)
        found: list[Content] = [memoryview(cast(bytes, segments[at])) for at in range(len(segments))]
    except (zstandard.ZstdError, ValueError):  # the latter for an empty frame, of a pack that was cut
        found = [b""] * len(batch)
    return [
        (entry, data if hashlib.sha256(data).digest() == digest else store.read_blob(entry.sha256, limit=entry.size))
        for entry, digest, data in zip(batch, digests, found, strict=True)
    ]
