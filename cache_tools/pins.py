"""Snapshots that stay whatever the keep rules say.

In: a store and a snapshot. Out: an empty file in ``pins/`` that is named by the snapshot's id, or its removal.
"""

from __future__ import annotations

import os

from cache_tools.errors import READ_ONLY_STORE, storage_errors
from cache_tools.sharing import make_folder
from cache_tools.store import Store
from envguard import fsops


def pin(store: Store, name_or_id: str) -> str:
    """Keep a snapshot whatever the rules say; its id."""
    id_ = store.resolve(name_or_id)
    folder = store.root / "pins"
    with storage_errors(f"pinning {id_[:12]}", read_only=READ_ONLY_STORE):
        if not folder.is_dir():
            make_folder(folder, like=store.root / "snapshots")
        if not (folder / id_).exists():
            os.close(fsops.create(folder / id_, mode=0o600))
        fsops.fsync_dir(folder)
    return id_


def unpin(store: Store, name_or_id: str) -> str:
    """Undo ``pin``; the id."""
    id_ = store.resolve(name_or_id)
    with storage_errors(f"unpinning {id_[:12]}", read_only=READ_ONLY_STORE):
        fsops.unlink(store.root / "pins" / id_, missing_ok=True)
    return id_


def pinned(store: Store) -> frozenset[str]:
    """Ids of pinned snapshots."""
    folder = store.root / "pins"
    return frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
