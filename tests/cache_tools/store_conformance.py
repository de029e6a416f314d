"""What every kind of store must do: a backend's tests subclass ``StoreConformance`` with ``make`` and ``again``.

In: a store that is empty. Out: tests of the few methods that snapshot, restore, verify and prune rely on. Behaviour of
the commands on top is tested elsewhere.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from cache_tools.errors import CorruptError
from cache_tools.kinds import Kind
from cache_tools.manifest import Manifest, ManifestEntry
from cache_tools.packs import LARGE
from cache_tools.store import Store
from envguard.errors import UsageError

from . import helpers

CONTENTS = (b"x", b"the same words again and again " * 300, random.Random(1).randbytes(70_000))
BIG = random.Random(2).randbytes(1 << 20) * 6


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def manifest(*contents: bytes, created: str = "2026-11-29T16:20:00.000000Z") -> Manifest:
    entries = tuple(
        ManifestEntry(
            path=f"ab/c{number}.cpp",
            kind=Kind.SOURCE,
            size=len(data),
            sha256=digest(data).hex(),
            executable=False,
        )
        for number, data in enumerate(contents)
    )
    return Manifest(
        fingerprint=helpers.fingerprint(), compile_id=None, created=created, tool="test", parent=None, entries=entries
    )


class StoreConformance:
    """The tests."""

    def make(self, root: Path) -> Store:
        """A new store."""
        raise NotImplementedError

    def again(self, store: Store) -> Store:
        """The same store, as another process finds it."""
        raise NotImplementedError

    @pytest.fixture
    def vault(self, tmp_path: Path) -> Store:
        return self.make(tmp_path / "vault")

    def put(self, store: Store, *contents: bytes) -> list[bool]:
        with store.adding() as writer:
            new = [writer.add(data, digest(data)) for data in contents]
            writer.commit()
        return new

    def test_blobs_come_back_in_this_process_and_another(self, vault: Store) -> None:
        assert self.put(vault, *CONTENTS) == [True, True, True]
        for store in (vault, self.again(vault)):
            for data in CONTENTS:
                assert store.read_blob(digest(data).hex(), limit=len(data)) == data

    def test_a_blob_is_kept_once(self, vault: Store) -> None:
        assert self.put(vault, b"x", b"x") == [True, False]
        assert self.put(self.again(vault), b"x", b"y") == [False, True]

    def test_large_blobs_are_streamed_both_ways(self, vault: Store) -> None:
        assert len(BIG) > LARGE
        with vault.adding() as writer:
            chunks = (BIG[at : at + 100_000] for at in range(0, len(BIG), 100_000))
            assert writer.add_chunks(chunks, (digest(BIG),), len(BIG))
            writer.commit()
        found = list(self.again(vault).blob_chunks(digest(BIG).hex(), limit=len(BIG)))
        assert b"".join(found) == BIG
        assert max(map(len, found)) <= 1 << 20

    @pytest.mark.parametrize("change", [b"", b"more"])
    def test_a_large_blob_that_is_not_what_was_said_is_not_added(self, vault: Store, change: bytes) -> None:
        with vault.adding() as writer:
            writer.add(b"before", digest(b"before"))
            with pytest.raises(ValueError):  # noqa: PT011
                writer.add_chunks(iter([BIG[:-4] + b"oops"[: 4 - len(change)], change]), (digest(BIG),), len(BIG))
            writer.add(b"after", digest(b"after"))
            writer.commit()
        store = self.again(vault)
        assert store.read_blob(digest(b"after").hex(), limit=5) == b"after"
        with pytest.raises(CorruptError, match="missing"):
            store.read_blob(digest(BIG).hex(), limit=len(BIG))

    def test_what_is_not_committed_is_not_there(self, vault: Store) -> None:
        with vault.adding() as writer:
            writer.add(b"x", digest(b"x"))
        with pytest.raises(CorruptError, match="missing"):
            self.again(vault).read_blob(digest(b"x").hex(), limit=1)

    def test_a_longer_blob_than_allowed_is_refused(self, vault: Store) -> None:
        self.put(vault, b"twelve bytes", BIG)
        for data in (b"twelve bytes", BIG):
            with pytest.raises(CorruptError):
                vault.read_blob(digest(data).hex(), limit=len(data) - 1)

    def test_manifests_and_names(self, vault: Store) -> None:
        self.put(vault, *CONTENTS)
        content = manifest(*CONTENTS)
        id_, new = vault.add_manifest(content)
        assert new
        assert self.again(vault).add_manifest(content) == (id_, False)
        vault.set_ref("run", id_)
        store = self.again(vault)
        assert store.read_manifest(id_) == content
        assert (store.ids(), store.names(), store.read_ref("run")) == ((id_,), ("run",), id_)
        assert store.resolve("run") == store.resolve(id_[:8]) == id_
        second, _ = store.add_manifest(manifest(b"x", created="2026-11-30T16:20:00.000000Z"))
        store.set_ref("run", second)
        assert self.again(vault).read_ref("run") == second
        with pytest.raises(UsageError, match="names: run"):
            store.resolve("nope")

    def test_two_writers_at_once_lose_nothing(self, vault: Store) -> None:
        other = self.again(vault)
        with vault.adding() as one, other.adding() as two:
            one.add(b"shared", digest(b"shared"))
            two.add(b"shared", digest(b"shared"))
            one.add(b"one", digest(b"one"))
            two.add(b"two", digest(b"two"))
            one.commit()
            two.commit()
        for data in (b"shared", b"one", b"two"):
            assert self.again(vault).read_blob(digest(data).hex(), limit=9) == data
