"""The compile cache around a run: repair and restore before torch is imported, snapshot after the warm-up.

In: the configuration's store, the compile id. Out: what was restored, and the id of the snapshot that now holds this
run's entries. Built on ``cache_tools``; it decides when, not how. It imports no torch.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import cache_tools
from cache_tools.fingerprint import Fingerprint
from cache_tools.lease import using
from cache_tools.observe import observe
from cache_tools.plan import Match
from cache_tools.snapshot import snapshot
from cache_tools.store import Store
from dflash.console import say


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheState:
    """The cache directory as a run finds it."""

    directory: Path
    store: Store
    compile_id: str
    fingerprint: Fingerprint
    match: Match | None
    """The snapshot that was restored, or None."""
    files_added: int


def open_cache(store_dir: str, compile_id: str, held: contextlib.ExitStack) -> CacheState:
    """Move broken shared objects aside, restore the best match (merging: what is there stays).

    A process killed while g++ links leaves a 0-byte .so that torch would trust for ever. ``held`` gets a lease on the
    snapshot, so that no prune removes it while the run lasts.

    Raises:
        ToolError: the store is of an unknown format, or the cache directory is unsafe or unwritable.
    """
    directory = cache_tools.default_cache_dir()
    store = cache_tools.create_store(Path(store_dir) if store_dir else cache_tools.default_store_dir())
    moved = cache_tools.quarantine(directory, cache_tools.check_live(directory)).moved
    if moved:
        say(
            f"cache: {len(moved)} broken files moved aside, torch builds them again "
            f"(first: {moved[0].path}, {moved[0].reason})"
        )
    here = observe()
    match = cache_tools.best_match(store, here, compile_id)
    added = 0
    if match is not None:
        held.enter_context(using(store.root, match.id))
        plan = cache_tools.plan_restore(store, match.id, directory, here=here)
        result = cache_tools.execute(plan)
        added = result.added + result.repaired
        say(f"cache: snapshot {match.id[:12]} fits, {added} files restored to {directory}, {result.present} were there")
    return CacheState(
        directory=directory, store=store, compile_id=compile_id, fingerprint=here, match=match, files_added=added
    )


def keep_entries(state: CacheState, used: frozenset[str], *, build_ms: int | None) -> str | None:
    """Snapshot the entries that this run wrote or hit, unless the restored snapshot holds them all.

    ``build_ms``: what compiling took if nothing came from a cache, else None (the restored snapshot's figure is kept).

    Returns:
        The id of the snapshot that holds them; None where nothing was compiled.
    """
    if not used:
        return None
    if state.match is not None:
        held = {entry.path for entry in state.match.manifest.entries}
        if used <= held:
            return state.match.id
    result = snapshot(
        state.store,
        state.directory,
        name=f"train-{state.compile_id[:12]}",
        fingerprint=state.fingerprint,
        compile_id=state.compile_id,
        only=used,
        parent=state.match.id if state.match else None,
        build_ms=build_ms if build_ms is not None or state.match is None else state.match.manifest.build_ms,
    )
    return result.id
