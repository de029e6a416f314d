"""What the lock expects of one interpreter's environment.

In: a ``Lock`` and the interpreter's marker environment. Out: ``Expected``: what must be there (the project, its
dependencies and its default groups, with all they need) and what may be there (every extra and group besides), each
with the only version that the lock has for this interpreter. No I/O, no uv.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envguard.frozen import NOTHING, Frozen
from envguard.lock import NO_REWRITES, Edge, Lock, Metadata, Package, Rewrites, Source
from envguard.pkg import canonical, marker_holds


class Expected(Frozen):
    """Names are normalised; a version is None where the lock leaves it open (a dynamic project version)."""

    lock: Path
    required: dict[str, str | None]
    optional: dict[str, str | None]
    """Allowed and not required; disjoint from ``required``."""
    sources: Mapping[str, Source] = NOTHING
    """Where each of them is taken from."""
    extras: frozenset[tuple[str, str]] = frozenset()
    """(name, extra) of every extra that the required ones ask for."""
    rewrites: Rewrites = NO_REWRITES
    """What the project says instead of the metadata of others."""

    def document(self) -> dict[str, Any]:
        """All but the lock's path, for a cache; ``read_expected`` is the way back."""
        return {
            "required": self.required,
            "optional": self.optional,
            "sources": {name: [source.kind, source.location] for name, source in self.sources.items()},
            "extras": sorted(self.extras),
            "metadata": [[each.name, each.version, each.requires] for each in self.rewrites.metadata],
            "overrides": self.rewrites.overrides,
            "excludes": self.rewrites.excludes,
        }

    def version(self, name: str) -> str | None:
        """The locked version of ``name``, None where it has none or is not expected."""
        return self.required[name] if name in self.required else self.optional.get(name)

    def knows(self, name: str) -> bool:
        """Whether ``name`` may be in the environment."""
        return name in self.required or name in self.optional


def read_expected(lock: Path, document: Mapping[str, Any]) -> Expected:
    """What ``Expected.document`` wrote, as JSON gives it back."""
    metadata = (
        Metadata(name=name, version=version, requires=tuple(requires))
        for name, version, requires in document["metadata"]
    )
    return Expected(
        lock=lock,
        required=document["required"],
        optional=document["optional"],
        sources={name: Source(kind=kind, location=place) for name, (kind, place) in document["sources"].items()},
        extras=frozenset((name, extra) for name, extra in document["extras"]),
        rewrites=Rewrites(
            metadata=tuple(metadata),
            overrides=tuple(document["overrides"]),
            excludes=tuple(document["excludes"]),
        ),
    )


def expect(lock: Lock, environment: Mapping[str, str]) -> Expected:
    """Compute the expectation of ``lock`` for the PEP 508 ``environment``.

    Raises:
        CheckCrashed: ``packaging`` cannot be imported, or the lock holds a malformed marker.
    """
    closure = _Closure(lock, environment)
    project = lock.project
    closure.take(project)
    for group in project.default_groups:
        closure.follow(project.groups.get(group, ()))
    required, extras = dict(closure.versions), closure.extras
    for edges in (*project.extras.values(), *project.groups.values()):
        closure.follow(edges)
    optional = {name: version for name, version in closure.versions.items() if name not in required}
    return Expected(
        lock=lock.path,
        required=required,
        optional=optional,
        sources=closure.sources,
        extras=extras,
        rewrites=lock.rewrites,
    )


class _Closure:
    """Everything reachable from what was followed so far."""

    def __init__(self, lock: Lock, environment: Mapping[str, str]) -> None:
        self.versions: dict[str, str | None] = {}
        self.sources: dict[str, Source] = {}
        self._environment = environment
        self._visited: set[str] = set()
        self._verdicts: dict[str, bool] = {}  # a lock repeats a handful of markers hundreds of times
        self._seen_extras: set[tuple[str, str]] = set()
        self._by_name: dict[str, list[Package]] = {}
        for package in lock.packages:
            self._by_name.setdefault(package.name, []).append(package)

    @property
    def extras(self) -> frozenset[tuple[str, str]]:
        """(name, extra) of every extra that was followed so far."""
        return frozenset((canonical(name), extra) for name, extra in self._seen_extras)

    def take(self, package: Package) -> None:
        """Add a package and what it needs."""
        pending = [package]
        while pending:
            current = pending.pop()
            name = canonical(current.name)
            if name in self._visited:
                continue
            self._visited.add(name)
            if not current.is_virtual:
                self.versions[name] = current.version
                self.sources[name] = current.source
            pending.extend(self._targets(current.dependencies))

    def follow(self, edges: Iterable[Edge]) -> None:
        """Add the targets of ``edges`` and what they need."""
        for target in self._targets(edges):
            self.take(target)

    def _targets(self, edges: Iterable[Edge]) -> list[Package]:
        targets: list[Package] = []
        pending = list(edges)
        while pending:
            edge = pending.pop()
            if edge.marker is not None and not self._holds(edge.marker):
                continue
            for package in self._candidates(edge):
                targets.append(package)
                for extra in edge.extras:
                    if (key := (package.name, extra)) not in self._seen_extras:
                        self._seen_extras.add(key)
                        pending.extend(package.extras.get(extra, ()))
        return targets

    def _candidates(self, edge: Edge) -> list[Package]:
        return [
            package
            for package in self._by_name.get(edge.name, [])
            if (edge.version is None or package.version == edge.version)
            and (not package.resolution_markers or any(map(self._holds, package.resolution_markers)))
        ]

    def _holds(self, marker: str) -> bool:
        if marker not in self._verdicts:
            self._verdicts[marker] = marker_holds(marker, self._environment)
        return self._verdicts[marker]
