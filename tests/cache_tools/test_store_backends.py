"""The conformance suite on a plain directory, on another file system, and where neither locks nor hard links work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tools.store import Store, create_store, open_store

from .store_conformance import StoreConformance
from .test_disk_full import mount_tmpfs


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
        where = tmp_path / "mounted"
        mount_tmpfs(where, 65_536)
        store = self.make(where)
        yield store
        store.close()
        subprocess.run(["umount", "--lazy", str(where)], check=True)


class TestBareFileSystem(TestDirectory):
    """As a mounted bucket or an old NFS is: no flock, no hard links, no modes, no sync of the whole."""

    @pytest.fixture(autouse=True)
    def _bare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("fcntl.flock", refuse)
        monkeypatch.setattr(os, "link", refuse)
        monkeypatch.setattr("envguard.fsops.FEW", 10**9)
