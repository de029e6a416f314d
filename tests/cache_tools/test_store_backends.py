"""The conformance suite on a plain directory, on another file system, and where neither locks nor hard links work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tools.store import Store, create_store, open_store

from .helpers import tmpfs
from .store_conformance import StoreConformance


class TestDirectory(StoreConformance):
    """The usual store."""

    def make(self, root: Path) -> Store:
        return create_store(root)

    def again(self, store: Store) -> Store:
        return open_store(store.root)


class TestOtherFileSystem(TestDirectory):
    """A mount point of its own."""

    @pytest.fixture
    def vault(self, tmp_path: Path) -> Iterator[Store]:  # type: ignore[override]
        with tmpfs(tmp_path / "mounted", 65_536) as where:
            store = self.make(where)
            yield store
            store.close()


class TestBareFileSystem(TestDirectory):
    """As a mounted bucket or an old NFS is: no flock, no hard links, no modes, no sync of the whole."""

    @pytest.fixture(autouse=True)
    def _bare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("fcntl.flock", refuse)
        monkeypatch.setattr(os, "link", refuse)
        monkeypatch.setattr("envguard.fsops.FEW", 10**9)
