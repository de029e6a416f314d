"""Figures of a cache, of runs and of a store: what is in it, what it did, how it grows.

In: a cache directory, run directories, a store. Out: records of numbers. Outcomes of a run keep five things apart: hit,
miss, bypass, refused (a snapshot was there and did not fit) and error (it could not be restored). It judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cache_tools import records
from cache_tools.scan import Scan, scan
from cache_tools.store import Store
from cache_tools.trace import Cache, Lookup, Outcome
from envguard.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class KindStats:
    """Files of one kind."""

    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheStats:
    """A cache directory."""

    kinds: Mapping[str, KindStats]
    files: int
    bytes: int
    graphs: Mapping[str, int]
    """Cache → distinct keys."""
    duplicates: int
    """Entries beyond the first of their key."""
    duplicate_bytes: int
    skipped: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStats:
    """What the cache did for one run."""

    run: Path
    outcomes: Mapping[str, int]
    """hit, miss, bypass of whole graphs (AOT look-ups)."""
    fx: Mapping[str, int]
    """The same of inductor graphs, forward and backward apart."""
    reasons: Mapping[str, int]
    """Of bypasses."""
    refused: str | None
    """Why a snapshot for these graphs was not restored."""
    error: str | None
    """Why restoring failed."""
    saved_seconds: float
    """Compiling that hits made unnecessary, by torch's own account."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """A snapshot beside its parent."""

    id: str
    names: tuple[str, ...]
    created: str
    entries: int
    bytes: int
    new_entries: int
    new_bytes: int
    """Content that the parent does not hold."""


def cache_stats(cache_dir: Path) -> CacheStats:
    """Figures of a cache directory; raises as ``scan``."""
    return stats_of(scan(cache_dir))


def stats_of(found: Scan) -> CacheStats:
    """Figures of a scan."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    keys: dict[str, set[str]] = {cache.value: set() for cache in Cache}
    for entry in found.entries:
        files[entry.kind.value] += 1
        sizes[entry.kind.value] += entry.size
        if entry.kind.value in keys:
            keys[entry.kind.value].add(entry.path.split("/")[-2])
    size_of = {entry.path: entry.size for entry in found.entries}
    extra = [path for paths in found.duplicates.values() for path in paths[1:]]
    return CacheStats(
        kinds={kind: KindStats(files=files[kind], bytes=sizes[kind]) for kind in sorted(files)},
        files=len(found.entries),
        bytes=sum(size_of.values()),
        graphs={cache: len(names) for cache, names in keys.items()},
        duplicates=len(extra),
        duplicate_bytes=sum(size_of[path] for path in extra),
        skipped=found.skipped,
    )


def run_stats(run: Path) -> RunStats:
    """Figures of a run directory.

    Raises:
        UsageError: it holds no readable ``cache_keys.json`` and ``compile.json``.
    """
    lookups = records.read_run(run).lookups
    restore = _restore(run / "compile.json")
    aot, fx = (distinct(lookups, cache) for cache in (Cache.AOT, Cache.FX))
    bypassed = Counter(one.reason or "no reason given" for one in aot if one.outcome is Outcome.BYPASS)
    return RunStats(
        run=run,
        outcomes=_outcomes(aot),
        fx=_outcomes(fx),
        reasons=dict(sorted(bypassed.items())),
        refused=restore.get("reason") if restore.get("outcome") == "refused" else None,
        error=restore.get("reason") if restore.get("outcome") == "error" else None,
        saved_seconds=saved_seconds(lookups),
    )


def own_snapshot(run: Path) -> str | None:
    """The id of the snapshot that the run took of what it used; None where it took none, or nothing tells."""
    try:
        found = records.read_document(run / "compile.json")
    except UsageError:
        return None
    kept = found.get("snapshot") if isinstance(found, dict) else None
    return kept if isinstance(kept, str) else None


def when_started(run: Path) -> datetime | None:
    """When the run last started; None where nothing tells, as in a directory that TORCH_TRACE filled."""
    try:
        found = records.read_document(run / "run.json")
        started = datetime.fromisoformat(found["started"])
    except (UsageError, TypeError, KeyError, ValueError):
        return None
    return started if started.tzinfo else None


def saved_seconds(lookups: tuple[Lookup, ...]) -> float:
    """Seconds of compiling that hits saved: of the inductor graphs, and of a whole graph that has none of them.

    torch's figure for a whole graph counts the backward twice where it is not compiled lazily.
    """
    hits = [one for one in lookups if one.outcome is Outcome.HIT]
    parts = {one.graph for one in hits if one.cache is Cache.FX}
    counted = (one for one in hits if one.cache is Cache.FX or one.graph not in parts)
    return sum(one.saved_ms for one in counted) / 1000


def distinct(lookups: tuple[Lookup, ...], cache: Cache) -> list[Lookup]:
    """Look-ups of ``cache``; torch asks twice for an inductor graph that an AOT entry names and that is gone."""
    return list({(one.key or id(one), one.outcome): one for one in lookups if one.cache is cache}.values())


def growth(store: Store) -> tuple[Growth, ...]:
    """Every snapshot, oldest first, with what it added to its parent; raises ``CorruptError`` for a damaged one."""
    names: dict[str, list[str]] = {}
    for name in store.names():
        names.setdefault(store.read_ref(name), []).append(name)
    manifests = {id_: store.read_manifest(id_) for id_ in store.ids()}
    found: list[Growth] = []
    for id_, content in manifests.items():
        parent = manifests.get(content.parent) if content.parent else None
        held = {entry.sha256 for entry in parent.entries} if parent else set()
        new = {entry.sha256: entry.size for entry in content.entries if entry.sha256 not in held}
        found.append(
            Growth(
                id=id_,
                names=tuple(names.get(id_, ())),
                created=content.created,
                entries=len(content.entries),
                bytes=content.size,
                new_entries=len(new),
                new_bytes=sum(new.values()),
            )
        )
    return tuple(sorted(found, key=lambda one: (one.created, one.id)))


def _outcomes(lookups: list[Lookup]) -> dict[str, int]:
    counts = Counter(one.outcome for one in lookups)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _restore(path: Path) -> dict[str, str | None]:
    """What ``compile.json`` says of the restore; nothing where another program than ``dflash train`` wrote the run."""
    if not path.exists():
        return {}
    try:
        document = records.read_document(path)
        restore = document.get("restore") or {}
        return {str(name): None if value is None else str(value) for name, value in restore.items()}
    except AttributeError as error:
        raise UsageError(f"{path} is damaged: run again to write it") from error
