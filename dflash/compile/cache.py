"""The compile cache around a run: repair and restore before torch is imported, snapshot after the warm-up.

In: the configuration's store, the compile id. Out: what was restored or why nothing was, and the id of the snapshot
that now holds this run's entries. Built on ``cache_tools``; it decides when, not how. It imports no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cache_tools
from cache_tools import coverage, render
from cache_tools.errors import CorruptError
from cache_tools.fingerprint import Fingerprint
from cache_tools.keyring import open_keyring
from cache_tools.lease import using
from cache_tools.observe import observe
from cache_tools.plan import Match
from cache_tools.secrets import Policy, Scanner, lines
from cache_tools.snapshot import snapshot
from cache_tools.store import Store
from cache_tools.told import NO_AUTOCAST
from cache_tools.understanding import coverage_line
from dflash.console import say


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """How restoring went, for ``compile.json``."""

    outcome: str
    """restored, none (there is no snapshot for these graphs), refused (there is, and it does not fit) or error."""
    reason: str | None = None
    """Of refused and error."""


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
    restore: Restore


def describe_store(store_dir: str) -> str:
    """The store that a run would use, and what is in it; nothing is made.

    Raises:
        ToolError: it could not be used.
    """
    root = _store_root(store_dir)
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return f"{root}, made by the first run"
    return f"{root}, {len(cache_tools.open_store(root).ids())} snapshots"


def _store_root(store_dir: str) -> Path:
    return Path(store_dir) if store_dir else cache_tools.default_store_dir()


def open_cache(store_dir: str, compile_id: str, held: contextlib.ExitStack) -> CacheState:
    """Move broken shared objects aside, restore the best match that is trusted (merging:
    what is there stays).

    A process killed while g++ links leaves a 0-byte .so that torch would trust for ever. How much of what the last run
    used is there is told before; a damaged snapshot costs a compilation, not the run. ``held`` gets a lease on the
    snapshot, so that no prune removes it while the run lasts.

    Raises:
        ToolError: the store is of an unknown format, or the cache directory is unsafe or unwritable.
    """
    directory = cache_tools.default_cache_dir()
    store = cache_tools.create_store(_store_root(store_dir))
    moved = cache_tools.quarantine(directory, cache_tools.check_live(directory)).moved
    if moved:
        say(
            f"cache: {len(moved)} broken files moved aside, torch builds them again "
            f"(first: {moved[0].path}, {moved[0].reason})"
        )
    here = observe().with_told({"autocast": NO_AUTOCAST})  # dflash sets its dtypes itself
    open_keyring().prepare()  # what this run compiles is restored next time only if it can be recorded as ours
    last = coverage.newest(store, compile_id, here)
    tell_coverage(directory, last)
    match = cache_tools.best_match(store, here, compile_id, say=lambda why: say(f"cache: passed over: {why}"))
    added = 0
    restore = Restore(outcome="none")
    if match is not None:
        for field in match.comparison.degrading:
            say(f"cache: {render.field_line(field)}")
        held.enter_context(using(store.root, match.id))
        try:
            result = cache_tools.execute(cache_tools.plan_restore(store, match.id, directory, here=here))
        except CorruptError as error:
            say(f"warning: snapshot {match.id[:12]} is not restored, its graphs are compiled: {error}")
            match, restore = None, Restore(outcome="error", reason=str(error))
        else:
            added = result.added + result.repaired
            restore = Restore(outcome="restored")
            present = f"{added} files restored to {directory}, {result.present} were there"
            say(f"cache: snapshot {match.id[:12]} fits, {present}")
    elif last is not None:
        fatal = "; ".join(render.field_line(field) for field in last.comparison.fatal)
        reason = fatal or "it was passed over, for the reason that the warning gives"
        restore = Restore(outcome="refused", reason=f"snapshot {last.id[:12]}: {reason}")
        say(f"cache: snapshot {last.id[:12]} is for these graphs and not restored: {reason}")
    return CacheState(
        directory=directory,
        store=store,
        compile_id=compile_id,
        fingerprint=here,
        match=match,
        files_added=added,
        restore=restore,
    )


def tell_coverage(directory: Path, last: Match | None) -> None:
    """Say how much of what the last run of these graphs used is in the cache, where something is missing."""
    if last is None:
        return
    covered = coverage.coverage(directory, coverage.used_of(last.manifest))
    if not covered.complete:
        say(f"cache: {coverage_line(covered)}")


def keep_entries(
    state: CacheState, used: frozenset[str], *, told: Mapping[str, str | None], build_ms: int | None
) -> str | None:
    """Snapshot the entries that this run wrote or hit, unless the restored snapshot holds them all.

    ``told``: what only torch knows of the fingerprint. ``build_ms``: what compiling took if nothing came from a cache,
    else None (the restored snapshot's figure is kept).

    Returns:
        The id of the snapshot that holds them; None where nothing was compiled.
    """
    if not used:
        return None
    if state.match is not None:
        held = {entry.path for entry in state.match.manifest.entries}
        if used <= held:
            return state.match.id
    scanner = Scanner(Policy.WARN)
    result = snapshot(
        state.store,
        state.directory,
        name=f"train-{state.compile_id[:12]}",
        fingerprint=state.fingerprint.with_told(told),
        compile_id=state.compile_id,
        only=used,
        parent=state.match.id if state.match else None,
        build_ms=build_ms if build_ms is not None or state.match is None else state.match.manifest.build_ms,
        scanner=scanner,
    )
    for line in lines(scanner.findings):
        say(f"cache: warning: {line}; do not share the snapshot")
    return result.id
