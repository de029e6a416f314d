"""Removing snapshots and the space they took: carrying out a plan. Nothing else deletes from a store.

In: a ``PrunePlan`` (``prune_plan.py``). Out: a ``PruneResult``. Deletion goes names, manifests, whole packs; then packs
of which a part stays are written anew: stopped at any moment, also by a full disk, what is listed verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cache_tools import lease, stamps
from cache_tools.blobs import is_intact
from cache_tools.errors import READ_ONLY_STORE, CorruptError, storage_errors
from cache_tools.packs import PackReader, PackWriter
from cache_tools.prune_plan import PrunePlan, plan_now
from cache_tools.store import Store
from envguard import fsops


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneResult:
    """What was done."""

    snapshots: int
    packs: int
    leftovers: int
    bytes_freed: int


def execute(plan: PrunePlan, on_progress: Callable[[int, int], None] | None = None) -> PruneResult:
    """Do what the plan says, as far as it is still right: a snapshot that is in use by now stays.

    Raises:
        StorageError: the file system refuses, or the store is written to or pruned by somebody else for too long.
        CorruptError: a blob that stays is damaged; its pack was left as it is.
    """
    store = plan.store
    with storage_errors(f"pruning {store.root}", read_only=READ_ONLY_STORE), lease.pruning(store.root) as held:
        may_go = frozenset(one.id for one in plan.removed)
        current = plan_now(store, plan.rules, may_go, held.stat().st_mtime)  # by the clock of the store's own machine
        _remove_names(store, current)
        for one in current.removed:
            _remove_manifest(store, one.id)
        if current.removed:
            fsops.fsync_dir(store.root / "snapshots")
        for path in current.leftovers:
            fsops.unlink(path, missing_ok=True)
        _remove_packs(store, current.delete_packs)
        new = _rewrite(store, current.rewrite_packs, on_progress)
        # The same contents make the same pack: one that goes may be what another was written anew to.
        _remove_packs(store, sorted(current.rewrite_packs.keys() - new))
        store.index.reload()
        store.close()
    return PruneResult(
        snapshots=len(current.removed),
        packs=len(current.delete_packs) + len(current.rewrite_packs),
        leftovers=len(current.leftovers),
        bytes_freed=current.bytes_freed,
    )


def _rewrite(
    store: Store, packs: Mapping[str, frozenset[bytes]], on_progress: Callable[[int, int], None] | None
) -> set[str]:
    """Copy what stays out of packs that go; the names of the packs that have it now."""
    total = sum(store.index.packs[name][digest].length for name, alive in packs.items() for digest in alive)
    done = 0
    writer, reader = PackWriter(store.root / "blobs"), PackReader(store.index)
    try:
        for name, alive in packs.items():
            for digest in sorted(alive, key=lambda one: store.index.packs[name][one].offset):
                place = store.index.packs[name][digest]
                frame = reader.frame(place)
                if not is_intact(frame, place):
                    raise CorruptError(
                        f"{store.root / 'blobs' / name} is damaged at blob {digest.hex()[:12]}: run verify"
                    )
                writer.add(digest, frame, place.size)
                done += place.length
                if on_progress:
                    on_progress(done, total)
        new = writer.seal()
    finally:
        reader.close()
        writer.abandon()
    if new:
        rows = stamps.read(stamps.pack_stamp(store.root))
        rows |= {path.name: list(stamps.status_of(path.stat())) for path in new}
        stamps.write(stamps.pack_stamp(store.root), rows)
    return {path.name for path in new}


def _remove_names(store: Store, plan: PrunePlan) -> None:
    names = [name for one in plan.removed for name in one.names]
    for name in names:
        fsops.unlink(store.ref_path(name), missing_ok=True)
    if names:
        fsops.fsync_dir(store.root / "refs")


def _remove_manifest(store: Store, id_: str) -> None:
    """The manifest first: what belongs to it (a signature) means nothing without it."""
    path = store.manifest_path(id_)
    fsops.unlink(path, missing_ok=True)
    for other in path.parent.glob(f"{id_}.*"):
        fsops.unlink(other, missing_ok=True)


def _remove_packs(store: Store, names: Sequence[str]) -> None:
    for name in names:
        fsops.unlink(store.root / "blobs" / name, missing_ok=True)
    if names:
        fsops.fsync_dir(store.root / "blobs")
