"""How much of what a run used is in a cache: "6 of the 214 entries that the last run used".

In: a cache directory and what was used (a snapshot's manifest, or ``cache_keys.json`` of a run). Out: a ``Coverage``.
Sizes are compared, contents are not; of a graph entry any file under its key counts, since torch writes the same graph
in other bytes each time. It restores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cache_tools.errors import CorruptError
from cache_tools.fingerprint import Comparison, Fingerprint, compare
from cache_tools.kinds import GRAPHS, kind_of
from cache_tools.manifest import Manifest
from cache_tools.plan import Match
from cache_tools.relocate import is_group
from cache_tools.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Files and bytes of what was used, and how much of it is there."""

    used: int
    used_bytes: int
    present: int
    present_bytes: int

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.present == self.used


def coverage(cache_dir: Path, used: Mapping[str, int]) -> Coverage:
    """How much of ``used`` (relative path → bytes) ``cache_dir`` holds."""
    present = {path: size for path, size in used.items() if _has(cache_dir / path, path, size)}
    return Coverage(
        used=len(used), used_bytes=sum(used.values()), present=len(present), present_bytes=sum(present.values())
    )


def used_of(manifest: Manifest) -> dict[str, int]:
    """What a snapshot says was used: path → bytes."""
    return {entry.path: entry.size for entry in manifest.entries}


def newest(store: Store, compile_id: str | None, here: Fingerprint) -> Match | None:
    """The newest readable snapshot for these graphs, whether or not it fits ``here`` (its comparison tells)."""
    found: list[Match] = []
    for id_ in store.ids():
        try:
            manifest = store.read_manifest(id_)
        except CorruptError:  # best_match warns of it and verify reports it
            continue
        if compile_id is None or manifest.compile_id == compile_id:
            comparison: Comparison = compare(manifest.fingerprint, here, gpu_kernels=manifest.gpu_kernels)
            found.append(Match(id=id_, manifest=manifest, comparison=comparison))
    return max(found, key=lambda match: match.manifest.created, default=None)


def snapshot_keys(
    store: Store, *, but: str | None = None, before: datetime | None = None
) -> dict[str, tuple[str, ...]]:
    """Key of an entry → names (or ids) of the snapshots that hold it.

    ``but`` that id: the one a run itself left. ``before``: only those made before that moment.
    """
    names: dict[str, list[str]] = {}
    for name in store.names():
        names.setdefault(store.read_ref(name), []).append(name)
    keys: dict[str, dict[str, None]] = {}
    for id_ in store.ids():
        if id_ == but:
            continue
        manifest = store.read_manifest(id_)
        if before is not None and datetime.fromisoformat(manifest.created) >= before:
            continue
        for entry in manifest.entries:
            if kind_of(entry.path) in GRAPHS:
                shown = names.get(id_, [id_[:12]])
                keys.setdefault(entry.path.split("/")[-2], {}).update(dict.fromkeys(shown))
    return {key: tuple(held) for key, held in keys.items()}


def _has(file: Path, path: str, size: int) -> bool:
    try:
        if file.lstat().st_size == size or is_group(path):  # a group file's size changes with the directory
            return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    return kind_of(path) in GRAPHS and file.parent.is_dir() and any(file.parent.iterdir())
