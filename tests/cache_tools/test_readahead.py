"""Contents come out whole, in the order of their packs; what is damaged is found elsewhere or named."""

from __future__ import annotations

import hashlib
import os
import resource
import tracemalloc

import pytest

from cache_tools import blobs
from cache_tools.errors import CorruptError
from cache_tools.kinds import Kind
from cache_tools.manifest import ManifestEntry
from cache_tools.packs import PackWriter
from cache_tools.readahead import contents
from cache_tools.store import Store, open_store

from . import helpers

BLOBS = [f"content {number} ".encode() * (1 + 9_000 * (number % 3)) for number in range(60)]
"""More than fit into one batch."""


def entry(data: bytes, size: int | None = None) -> ManifestEntry:
    digest = hashlib.sha256(data).hexdigest()
    return ManifestEntry(
        path=f"odd/{digest}",
        kind=Kind.UNKNOWN,
        size=len(data) if size is None else size,
        sha256=digest,
        executable=False,
    )


@pytest.fixture
def filled(store: Store) -> Store:
    with store.adding() as writer:
        for data in BLOBS:
            writer.add(data, hashlib.sha256(data).digest())
        writer.commit()
    return open_store(store.root)


def test_every_content_comes_out_once_for_each_entry(filled: Store) -> None:
    wanted = [entry(data) for data in BLOBS]
    found = [(one.sha256, bytes(data)) for one, data in contents(filled, [*wanted, wanted[7]])]
    expected = [(one.sha256, data) for one, data in zip(wanted, BLOBS, strict=True)]
    assert sorted(found) == sorted([*expected, expected[7]])
    places = [filled.index.places[bytes.fromhex(digest)].offset for digest, _ in found]
    assert places == sorted(places)


def test_a_damaged_content_is_named_and_nothing_wrong_comes_out(filled: Store) -> None:
    pack = helpers.packs(filled.root)[0]
    place = filled.index.places[hashlib.sha256(BLOBS[30]).digest()]
    helpers.flip(pack, (place.offset + place.length // 2) * 8)
    out: list[bytes] = []
    with pytest.raises(CorruptError, match=pack.name):
        out.extend(bytes(data) for _, data in contents(filled, map(entry, BLOBS)))
    assert set(out) <= set(BLOBS)


def test_another_copy_takes_the_place_of_a_damaged_one(filled: Store) -> None:
    digest = hashlib.sha256(BLOBS[30]).digest()
    writer = PackWriter(filled.root / "blobs")
    writer.add(digest, blobs.compressor().compress(BLOBS[30]), len(BLOBS[30]))
    writer.seal()
    again = open_store(filled.root)
    place = again.index.places[digest]
    helpers.flip(filled.root / "blobs" / place.pack, (place.offset + place.length // 2) * 8)
    assert sorted(bytes(data) for _, data in contents(again, map(entry, BLOBS))) == sorted(BLOBS)


def test_an_entry_that_says_less_than_the_blob_has_is_refused(filled: Store) -> None:
    with pytest.raises(CorruptError):
        list(contents(filled, [entry(BLOBS[1], size=len(BLOBS[1]) - 1)]))


def test_a_pack_that_is_cut_while_it_is_in_use_is_named(filled: Store) -> None:
    assert filled.index.places
    pack = helpers.packs(filled.root)[0]
    os.truncate(pack, 0)
    with pytest.raises(CorruptError, match=pack.name):
        list(contents(filled, map(entry, BLOBS)))


def test_another_copy_takes_the_place_of_a_large_damaged_one(store: Store) -> None:
    data = os.urandom(5 << 20)
    digest = hashlib.sha256(data)
    for number in range(2):
        writer = PackWriter(store.root / "blobs")
        writer.add(bytes([number]) * 32, b"other", 5)
        writer.add_chunks((digest.digest(),), iter([data]), len(data))
        writer.seal()
    place = store.index.places[digest.digest()]
    helpers.flip(store.root / "blobs" / place.pack, (place.offset + place.length // 2) * 8)
    assert store.read_blob(digest.hexdigest(), limit=len(data)) == data


def test_frames_that_are_longer_than_their_content_do_not_fill_the_memory(store: Store) -> None:
    """The index says what a frame's length is, and a hole in a file costs its maker nothing."""
    pack = store.root / "blobs" / "new"
    length = 1 << 30
    name, index = blobs.encode_index((bytes([number]) * 32, b"\0" * 32, length, 9) for number in range(20))
    with pack.open("wb") as handle:
        handle.truncate(20 * length)
        handle.seek(20 * length)
        handle.write(index)
    pack.rename(pack.with_name(name))
    wanted = [
        ManifestEntry(path="odd/x", kind=Kind.UNKNOWN, size=9, sha256=bytes([number]).hex() * 32, executable=False)
        for number in range(20)
    ]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match=name):
            list(contents(store, wanted))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_store_of_more_packs_than_files_may_be_open(store: Store) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = []
    for number in range(100):
        data = f"snapshot {number}".encode()
        writer = PackWriter(store.root / "blobs")
        writer.add(hashlib.sha256(data).digest(), blobs.compressor().compress(data), len(data))
        writer.seal()
        wanted.append(entry(data))
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, hard))
    try:
        assert len(list(contents(open_store(store.root), wanted))) == 100
        with open_store(store.root).adding() as writer:
            assert all(writer.holds(bytes.fromhex(one.sha256)) for one in wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
