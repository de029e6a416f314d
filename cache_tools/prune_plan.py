"""What a prune would remove: keep rules against a store, and nothing is written.

In: a store and keep rules; a snapshot that any rule keeps stays. Out: a ``PrunePlan``, which a dry run prints and
``prune.execute`` carries out. Recency comes from our own stamps, never from access times. What no manifest names (a
killed writer's leavings) goes once it is older than the grace period.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache_tools import lease, stamps
from cache_tools.errors import CorruptError, storage_errors
from cache_tools.manifest import ID, Manifest
from cache_tools.packs import PackReader
from cache_tools.pins import pinned
from cache_tools.store import Store
from envguard.errors import UsageError

GRACE = 3600.0
"""Seconds that what no manifest names is left alone."""
ATTEMPTS = 5
REPACK_SHARE = 0.2
"""A pack is written anew without its dead blobs when they take more than this share of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What to keep. Without any of the first three every snapshot is kept and only leftovers go."""

    keep_last: int | None = None
    """So many of the most recently used."""
    keep_within: float | None = None
    """Those used within so many seconds."""
    max_size: int | None = None
    """The most recently used, as many as fit into so many bytes."""
    grace: float = GRACE

    @property
    def removes_snapshots(self) -> bool:
        """Whether some snapshot may go."""
        return not (self.keep_last is None and self.keep_within is None and self.max_size is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One snapshot and its fate."""

    id: str
    names: tuple[str, ...]
    created: str
    used: str
    """When it was last taken or restored, as far as this store knows; UTC."""
    keep: tuple[str, ...]
    """Why it stays; empty if it goes."""
    bytes: int
    """On disk, of what no more recently used snapshot shares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunePlan:
    """What ``execute`` would do. Snapshots are sorted, the most recently used first."""

    store: Store
    rules: Rules
    snapshots: tuple[Candidate, ...]
    delete_packs: tuple[str, ...]
    rewrite_packs: Mapping[str, frozenset[bytes]]
    """Pack → the blobs of it that stay."""
    leftovers: tuple[Path, ...]
    """Of killed processes: temporary files, leases, stamps of snapshots that are gone."""
    bytes_before: int
    """Of all packs and manifests."""
    bytes_freed: int
    problem: str | None = field(default=None)
    """A rule that could not be met."""

    @property
    def removed(self) -> tuple[Candidate, ...]:
        """Snapshots that go."""
        return tuple(one for one in self.snapshots if not one.keep)


def plan_prune(store: Store, rules: Rules) -> PrunePlan:
    """Plan; nothing is written.

    Raises:
        UsageError: a rule makes no sense.
        CorruptError: a manifest or name cannot be read, so nobody knows which blobs it needs.
    """
    for name, value in (
        ("keep-last", rules.keep_last),
        ("keep-within", rules.keep_within),
        ("max-size", rules.max_size),
    ):
        if value is not None and value < 0:
            raise UsageError(f"{name} {value} is negative: give 0 or more")
    with storage_errors(f"reading {store.root}"):
        for _ in range(ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):  # another process prunes: what is left is looked at again
                return plan_now(store, rules, None, time.time())
        return plan_now(store, rules, None, time.time())


def plan_now(store: Store, rules: Rules, may_go: frozenset[str] | None, now: float) -> PrunePlan:
    """``may_go``: the snapshots that may be removed, None for all."""
    store.index.reload()
    manifests = dict(_manifests(store))
    snapshots, problem = _judge(store, rules, manifests, may_go, now)
    kept = {one.id for one in snapshots if one.keep}
    named = {id_: _digests(content) for id_, content in manifests.items()}
    needed = {digest for id_ in kept for digest in named[id_]}
    delete, rewrite = _packs(store, rules, needed, set().union(*named.values()), now)
    sizes = {path.name: status.st_size for path, status in _present(store.root / "blobs")}
    manifest_bytes = {id_: store.manifest_path(id_).stat().st_size for id_ in manifests}
    freed = sum(sizes.get(name, 0) for name in delete) + sum(manifest_bytes[id_] for id_ in manifests.keys() - kept)
    for name, alive in rewrite.items():
        freed += sum(place.length for digest, place in store.index.packs[name].items() if digest not in alive)
    return PrunePlan(
        store=store,
        rules=rules,
        snapshots=snapshots,
        delete_packs=tuple(delete),
        rewrite_packs=rewrite,
        leftovers=tuple(_leftovers(store.root, kept, now - rules.grace)),
        bytes_before=sum(sizes.values()) + sum(manifest_bytes.values()),
        bytes_freed=freed,
        problem=problem,
    )


def _judge(
    store: Store, rules: Rules, manifests: Mapping[str, Manifest], may_go: frozenset[str] | None, now: float
) -> tuple[tuple[Candidate, ...], str | None]:
    used = {id_: max(_seconds(one.created), stamps.last_use(store.root, id_) / 1e9) for id_, one in manifests.items()}
    ordered = sorted(manifests, key=lambda id_: (used[id_], manifests[id_].created, id_), reverse=True)
    names: dict[str, list[str]] = {id_: [] for id_ in ordered}
    for name, id_ in _names(store):
        if id_ in names:  # else it was taken since we listed; under the lock nothing is
            names[id_].append(name)
    in_use = {held.subject: held.holder for held in lease.alive(store.root)}
    pins = pinned(store)
    reasons: dict[str, list[str]] = {id_: [] for id_ in ordered}
    for position, id_ in enumerate(ordered):
        why = reasons[id_]
        why += ["pinned"] if id_ in pins else []
        why += [f"in use by {in_use[id_]}"] if id_ in in_use else []
        why += ["no rule removes it"] if not rules.removes_snapshots else []
        why += ["not in the plan"] if may_go is not None and id_ not in may_go else []
        why += ["among the last"] if rules.keep_last is not None and position < rules.keep_last else []
        why += ["used lately"] if rules.keep_within is not None and used[id_] >= now - rules.keep_within else []
    sizes, problem = _fit(store, rules.max_size, ordered, manifests, reasons)
    snapshots = tuple(
        Candidate(
            id=id_,
            names=tuple(names[id_]),
            created=manifests[id_].created,
            used=datetime.datetime.fromtimestamp(used[id_], datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            keep=tuple(reasons[id_]),
            bytes=sizes[id_],
        )
        for id_ in ordered
    )
    return snapshots, problem


def _manifests(store: Store) -> Iterator[tuple[str, Manifest]]:
    """All that are there; one that another process prunes meanwhile is not."""
    for id_ in store.ids():
        try:
            yield id_, store.read_manifest(id_)
        except CorruptError:
            if store.manifest_path(id_).exists():
                raise


def _names(store: Store) -> Iterator[tuple[str, str]]:
    for name in store.names():
        try:
            yield name, store.read_ref(name)
        except (CorruptError, FileNotFoundError):
            if store.ref_path(name).exists():
                raise


def _fit(
    store: Store,
    max_size: int | None,
    ordered: list[str],
    manifests: Mapping[str, Manifest],
    reasons: Mapping[str, list[str]],
) -> tuple[dict[str, int], str | None]:
    """Each snapshot's own bytes, and what the size rule could not do; it adds to ``reasons`` what fits."""
    seen: set[bytes] = set()
    sizes: dict[str, int] = {}
    kept_first = sorted(ordered, key=lambda id_: not reasons[id_]) if max_size is not None else ordered
    total = 0
    for id_ in kept_first:
        new = _digests(manifests[id_]) - seen
        places = (store.index.places.get(digest) for digest in new)
        sizes[id_] = sum(place.length for place in places if place) + store.manifest_path(id_).stat().st_size
        if max_size is not None and not reasons[id_]:
            if total + sizes[id_] > max_size:
                continue  # an older one that shares its blobs may still fit
            reasons[id_].append("fits the size")
        total += sizes[id_]
        seen |= new
    if max_size is not None and total > max_size:
        return sizes, f"{total} bytes stay although {max_size} are allowed: pins, users or other rules keep them"
    return sizes, None


def _packs(
    store: Store, rules: Rules, needed: set[bytes], named: set[bytes], now: float
) -> tuple[list[str], dict[str, frozenset[bytes]]]:
    """Packs to delete, and packs to write anew with the blobs of them that stay."""
    delete: list[str] = []
    rewrite: dict[str, frozenset[bytes]] = {}
    homes = _homes(store, needed)
    for name, places in store.index.packs.items():
        age = now - (store.root / "blobs" / name).stat().st_mtime
        if age < rules.grace and not places.keys() <= named:
            continue  # its snapshot may be about to appear
        alive = frozenset(digest for digest in places if digest in needed and homes.get(digest, name) == name)
        dead = sum(place.length for digest, place in places.items() if digest not in alive)
        if not alive:
            delete.append(name)
        elif dead > REPACK_SHARE * sum(place.length for place in places.values()):
            rewrite[name] = alive
    return delete, rewrite


def _homes(store: Store, needed: set[bytes]) -> dict[bytes, str]:
    """For each blob that several packs hold, the one that keeps it: an intact copy if there is one."""
    packs = store.index.packs
    if sum(map(len, packs.values())) == len(store.index.places):
        return {}
    counted = Counter(digest for places in packs.values() for digest in places)
    homes: dict[bytes, str] = {}
    reader = PackReader(store.index)
    try:
        for digest in (digest for digest, count in counted.items() if count > 1 and digest in needed):
            copies = [name for name, places in packs.items() if digest in places]
            homes[digest] = next((name for name in copies if reader.is_intact(packs[name][digest])), copies[-1])
    finally:
        reader.close()
    return homes


def _leftovers(root: Path, kept: set[str], before: float) -> Iterator[Path]:
    """Temporary files from before that time, leases of the dead, and what belongs to snapshots that are gone."""
    for folder in (root, *(root / name for name in ("blobs", "snapshots", "refs", "leases", "stamps", "pins"))):
        for path, status in _present(folder) if folder.is_dir() else ():
            old = status.st_mtime < before
            owner = path.name.removeprefix("used-").partition(".")[0]
            ownerless = ID.fullmatch(owner) is not None and owner not in kept
            if path.name.startswith(".tmp-"):
                gone = old
            elif folder.name == "stamps":
                gone = ownerless
            else:  # what belongs to a manifest is written before it, or after
                gone = ownerless and old and folder.name in ("snapshots", "pins") and path.suffix != ".json"
            if gone:
                yield path
    yield from lease.dead(root)


def _present(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of ``folder``; without what another process, which finishes writing, renames meanwhile."""
    for path in sorted(folder.iterdir()):
        try:
            yield path, path.lstat()
        except FileNotFoundError:
            continue


def _digests(content: Manifest) -> set[bytes]:
    return {bytes.fromhex(entry.sha256) for entry in content.entries}


def _seconds(created: str) -> float:
    moment = datetime.datetime.strptime(created, "%Y-%m-%dT%H:%M:%S.%fZ")
    return moment.replace(tzinfo=datetime.UTC).timestamp()
