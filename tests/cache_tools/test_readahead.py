"""Contents come out whole, in the order of their packs; what is damaged is found elsewhere or named."""

from __future__ import annotations

import hashlib

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
