"""A restored compile cache around any torch program.

    with cache_tools.restored(store, "my-model", keep="my-model") as session:
        import torch
        cache_tools.stable_keys()
        ...
    print(session.explain().groups)

In: a store, a snapshot and the code of the block. Out: the cache restored before torch fixes its directory, torch's
look-ups recorded, and on a clean exit a snapshot of exactly what was used. It imports no torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache_tools import records
from cache_tools.explain import Explanation, cached_in, explain_lookups
from cache_tools.observe import observe
from cache_tools.paths import CACHE_VARIABLE, default_cache_dir, default_store_dir
from cache_tools.plan import plan_restore
from cache_tools.render import field_line
from cache_tools.restore import RestoreResult, execute
from cache_tools.snapshot import SnapshotResult, snapshot
from cache_tools.store import Store, check_name, create_store, open_store
from cache_tools.target import check_apart
from cache_tools.told import tell
from cache_tools.trace import Cache, CacheTrace
from cache_tools.used import used_entries
from envguard.errors import UsageError

log = logging.getLogger(__name__)

_FIXING = ("torch._dynamo.package", "torch._inductor.codecache", "torch._inductor.runtime.triton_heuristics")
"""Modules of torch 2.11 that read the directory once and for all when they are imported."""


@dataclass(kw_only=True, slots=True)
class Session:
    """A cache in use; ``kept`` is there once the block has ended."""

    store: Store
    cache_dir: Path
    restored: RestoreResult | None
    """None where there was no such snapshot yet."""
    present: Mapping[Cache, frozenset[str]]
    """Keys that had entries when the block began."""
    trace: CacheTrace = field(default_factory=CacheTrace)
    kept: SnapshotResult | None = None

    def explain(self) -> Explanation:
        """Why the graphs so far hit or missed."""
        return explain_lookups(self.trace.lookups, cached_in(self.cache_dir, self.present), cache_dir=self.cache_dir)


@contextlib.contextmanager
def restored(
    store: Store | str | Path | None,
    ref: str,
    *,
    cache_dir: str | Path | None = None,
    keep: str | None = None,
    strict: bool = False,
    autocast: str | None = None,
) -> Iterator[Session]:
    """Restore snapshot ``ref`` of ``store`` (None: the default store) and point torch at it for the block.

    ``cache_dir``: where to; by default what this environment uses. ``keep``: on a clean exit, snapshot under this name
    what the process used; then ``ref`` may not exist yet. ``autocast``: what the block will run under, such as
    ``cpu bfloat16`` or ``off``; a snapshot made under another is warned of (``strict``: refused), since torch 2.11
    would give results of that other dtype. ``TORCHINDUCTOR_CACHE_DIR`` stays set where torch has been imported.

    Raises:
        UsageError: torch has fixed another directory already, or there is no such snapshot.
        IncompatibleError, CorruptError, StorageError: as ``execute``; the block does not run then.
    """
    directory = Path(os.path.abspath(cache_dir)) if cache_dir else default_cache_dir()
    check_not_fixed(directory)
    root = store.root if isinstance(store, Store) else Path(store) if store else default_store_dir()
    check_apart(root, {"the cache": directory}, option="store")
    vault = store if isinstance(store, Store) else open_store(root) if keep is None else create_store(root)
    here = observe().with_told({"autocast": autocast})
    result = None
    if keep is None or vault.ref_path(check_name(ref)).exists():
        plan = plan_restore(vault, ref, directory, here=here, strict=strict)
        result = execute(plan)
        for difference in plan.comparison.degrading:
            log.warning("snapshot %s: %s", ref, field_line(difference))
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(directory)
    session = Session(store=vault, cache_dir=directory, restored=result, present=records.keys_present(directory))
    try:
        with session.trace:
            yield session
        records.keep_in_cache(directory, session.trace.lookups)
        if keep is not None and (used := used_entries(directory)):
            told = here.with_told(tell(lookup.autocast for lookup in session.trace.lookups))
            session.kept = snapshot(vault, directory, name=keep, fingerprint=told, only=used)
    finally:
        if "torch" not in sys.modules:
            _put_back(before)


def check_not_fixed(directory: Path) -> None:
    """Refuse if torch, in this process, already uses another cache than ``directory``.

    Raises:
        UsageError: it does; modules that it has imported hold the other path.
    """
    current = os.environ.get(CACHE_VARIABLE)
    fixing = next((name for name in _FIXING if name in sys.modules), None)
    if fixing and current is not None and Path(current).absolute() != directory:
        raise UsageError(
            f"torch uses {current} already ({fixing} is imported), so {directory} would be used in part: "
            f"enter this block before torch compiles or torch._dynamo is imported, or set {CACHE_VARIABLE}={directory}"
        )


def _put_back(before: str | None) -> None:
    if before is None:
        os.environ.pop(CACHE_VARIABLE, None)
    else:
        os.environ[CACHE_VARIABLE] = before
