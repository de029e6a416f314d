"""Why graphs hit or missed: for each look-up of a run its cause, the nearest cached entry and what differs from it.

In: a run directory with ``cache_keys.json`` (records.py) or a directory that ``TORCH_TRACE`` filled; the cache
directory that it used; optionally a store, which may hold what the cache lacks. Out: an ``Explanation``, grouped: "6
graphs missed because inductor config max_autotune differs". It compares torch's own hashes of the components of keys,
imports no torch and executes nothing that is in a cache.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cache_tools import records, words
from cache_tools.paths import default_cache_dir
from cache_tools.records import Components
from cache_tools.stats import saved_seconds
from cache_tools.trace import Cache, Lookup, Outcome, read_trace
from envguard.errors import UsageError


class Cause(enum.StrEnum):
    """Why a look-up missed."""

    EMPTY = "empty"
    """The cache had no entry of this kind."""
    DIFFERS = "differs"
    """The nearest entry has another key, and the differing components are known."""
    LOST = "lost"
    """A snapshot has the entry, the cache had not."""
    UNUSABLE = "unusable"
    """The entry was there and torch could not use it."""
    SHAPES = "shapes"
    """The entry was there for other dynamic shapes: its guards did not hold."""
    UNRECORDED = "unrecorded"
    """There were entries, and nothing tells what their keys were made of."""
    BYPASS = "bypass"
    """torch does not cache this graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One component in which a key differs from the nearest cached one; None where a side has no such component."""

    name: str
    cached: str | None
    wanted: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One look-up; ``cause`` is None for a hit."""

    lookup: Lookup
    cause: Cause | None
    nearest: str | None = None
    """Key of the nearest entry."""
    differences: tuple[Difference, ...] = ()
    snapshots: tuple[str, ...] = ()
    """Those that hold the entry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Look-ups with one outcome for one reason."""

    outcome: Outcome
    cause: Cause | None
    text: str
    """Such as ``6 graphs missed because inductor config max_autotune differs (cached: False, now: True)``."""
    lookups: tuple[Explained, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Every look-up once, and the groups, misses first."""

    cache_dir: Path
    lookups: tuple[Explained, ...]
    groups: tuple[Group, ...]

    def count(self, outcome: Outcome, cache: Cache | None = None) -> int:
        """Look-ups with that outcome."""
        chosen = (one.lookup for one in self.lookups)
        return sum(one.outcome is outcome and cache in (None, one.cache) for one in chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cached:
    """What the cache held when the run began."""

    present: Mapping[Cache, frozenset[str]]
    components: Mapping[tuple[Cache, str], Components]
    """Of those entries of which something tells."""
    in_snapshots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key → names of snapshots that hold it."""


def explain_run(
    run: Path, *, cache_dir: Path | None = None, snapshots: Mapping[str, tuple[str, ...]] | None = None
) -> Explanation:
    """Explain a run directory, or a ``TORCH_TRACE`` directory.

    ``cache_dir``: the cache that was used; by default the one that the run names, else this environment's.
    ``snapshots``: key → snapshots that hold it (``coverage.snapshot_keys``), if a store is at hand.

    Raises:
        UsageError: neither is there, or it is damaged.
    """
    traced = any(run.glob("dedicated_log_torch_trace_*.log"))
    if not run.is_dir():
        raise UsageError(f"{run} is no directory: give that of a run that compiled, or one that TORCH_TRACE filled")
    if not traced and not os.path.lexists(run / records.FILE):
        raise UsageError(
            f"{run / records.FILE} is not there, nor a trace of torch: "
            "give the directory of a run that compiled, or one that TORCH_TRACE filled"
        )
    if not traced or (run / records.FILE).exists():
        keys = records.read_run(run)
        where, lookups, present = cache_dir or keys.cache_dir, keys.lookups, keys.present
    else:
        where, lookups = cache_dir or default_cache_dir(), read_trace(run)
        missed = {lookup.key for lookup in lookups if lookup.outcome is not Outcome.HIT}
        present = {cache: names - missed for cache, names in records.keys_present(where).items()}
    return explain_lookups(lookups, cached_in(where, present, snapshots or {}), cache_dir=where)


def explain_lookups(lookups: Iterable[Lookup], cached: Cached, *, cache_dir: Path) -> Explanation:
    """Explain ``lookups`` by what was cached before them."""
    once = {(one.cache, one.key or id(one), one.outcome): one for one in lookups}.values()
    explained = tuple(_explain(lookup, cached) for lookup in once)
    return Explanation(cache_dir=cache_dir, lookups=explained, groups=_groups(explained))


def cached_in(
    where: Path, present: Mapping[Cache, frozenset[str]], snapshots: Mapping[str, tuple[str, ...]] | None = None
) -> Cached:
    """What is known of the ``present`` keys of the cache at ``where``; ``snapshots`` as in ``explain_run``."""
    known = {one: found for one, found in records.read_cache(where).items() if one[1] in present[one[0]]}
    for key in sorted(present[Cache.FX]):
        if (Cache.FX, key) not in known and (found := records.read_entry(where, key)):
            known[Cache.FX, key] = found
    return Cached(present=present, components=known, in_snapshots=snapshots or {})


def _explain(lookup: Lookup, cached: Cached) -> Explained:
    if lookup.outcome is Outcome.HIT:
        return Explained(lookup=lookup, cause=None)
    if lookup.outcome is Outcome.BYPASS or lookup.key is None:
        return Explained(lookup=lookup, cause=Cause.BYPASS)
    if lookup.reason == "guard_miss":
        return Explained(lookup=lookup, cause=Cause.SHAPES, nearest=lookup.key)
    if lookup.key in cached.present[lookup.cache]:
        return Explained(lookup=lookup, cause=Cause.UNUSABLE, nearest=lookup.key)
    if held := cached.in_snapshots.get(lookup.key):
        return Explained(lookup=lookup, cause=Cause.LOST, snapshots=held)
    if not cached.present[lookup.cache]:
        return Explained(lookup=lookup, cause=Cause.EMPTY)
    candidates = {key: found for (cache, key), found in cached.components.items() if cache is lookup.cache}
    if not candidates or not lookup.components:
        return Explained(lookup=lookup, cause=Cause.UNRECORDED)
    nearest = min(candidates, key=lambda key: (_distance(candidates[key], lookup.components), key))
    differences = _differences(candidates[nearest], lookup.components)
    return Explained(lookup=lookup, cause=Cause.DIFFERS, nearest=nearest, differences=differences)


def _distance(cached: Components, wanted: Components) -> tuple[int, int]:
    """Another graph is farther than the same graph under other settings."""
    names = {one.name for one in _differences(cached, wanted)}
    own = sum(words.is_of_the_graph(name) for name in names)
    return own, len(names) - own


def _differences(cached: Components, wanted: Components) -> tuple[Difference, ...]:
    names = [
        name
        for name in (*wanted, *(cached.keys() - wanted.keys()))
        if (cached[name].hash if name in cached else None) != (wanted[name].hash if name in wanted else None)
    ]
    if any(name.startswith("functorch_config[") for name in names):
        names = [name for name in names if name != "autograd_config"]  # the same, all options in one
    return tuple(
        Difference(
            name=name,
            cached=cached[name].shown if name in cached else None,
            wanted=wanted[name].shown if name in wanted else None,
        )
        for name in sorted(names, key=lambda name: (words.is_of_the_graph(name), name))
    )


def _groups(explained: Sequence[Explained]) -> tuple[Group, ...]:
    found: dict[tuple[object, ...], list[Explained]] = {}
    for one in explained:
        names = tuple(words.family(difference.name) for difference in one.differences)
        reason = one.lookup.reason if one.cause is Cause.BYPASS else None
        kind = (one.lookup.outcome, one.cause, tuple(dict.fromkeys(names)), reason, one.snapshots)
        found.setdefault(kind, []).append(one)
    groups = [
        Group(outcome=members[0].lookup.outcome, cause=members[0].cause, text=_text(members), lookups=tuple(members))
        for members in found.values()
    ]
    order = [Outcome.MISS, Outcome.BYPASS, Outcome.HIT]
    return tuple(sorted(groups, key=lambda group: (order.index(group.outcome), -len(group.lookups), group.text)))


def _text(members: Sequence[Explained]) -> str:
    first = members[0]
    count = "1 graph" if len(members) == 1 else f"{len(members)} graphs"
    if first.cause is None:
        saved = saved_seconds(tuple(one.lookup for one in members))
        return f"{count} hit" + (f", {saved:.1f} s of compiling saved" if saved else "")
    if first.cause is Cause.BYPASS:
        return f"{count} bypassed the cache: {first.lookup.reason or 'torch gives no reason'}"
    return f"{count} missed because {_because(first)}"


def _because(one: Explained) -> str:
    match one.cause:
        case Cause.DIFFERS:
            return words.sentence([(each.name, each.cached, each.wanted) for each in one.differences])
        case Cause.LOST:
            return f"the cache lost them: snapshot {', '.join(one.snapshots)} has them, restore it"
        case Cause.UNUSABLE:
            return "torch could not use their entries, which were there: damaged, or a file that they need is gone"
        case Cause.SHAPES:
            return "their entries are for other dynamic shapes"
        case Cause.UNRECORDED:
            return "no cached entry has their keys (what those keys were made of was not recorded)"
        case _:
            return "nothing was cached"
