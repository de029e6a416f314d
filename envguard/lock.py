"""``uv.lock`` as a value: packages and the edges between them.

In: the file. Out: a frozen ``Lock``. It reads the format that uv writes (version 1) and refuses what it does not
understand; it evaluates no marker and decides nothing (``expect.py`` does), and never calls uv.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envguard.errors import LockError
from envguard.frozen import NOTHING, Frozen

LOCK_VERSION = 1
SOURCE_KINDS = ("registry", "git", "url", "path", "directory", "editable", "virtual")


class Edge(Frozen):
    """One requirement of a package, as resolved."""

    name: str
    version: str | None
    """Given where the lock holds several versions of the name."""
    marker: str | None
    extras: tuple[str, ...]


class Source(Frozen):
    """Where uv takes a package from."""

    kind: str
    """``registry``, ``git``, ``url``, ``path``, ``directory``, ``editable`` or ``virtual``."""
    location: str
    """The index, repository or path, as the lock has it."""


class Package(Frozen):
    """One locked package; a name occurs several times where versions differ by marker."""

    name: str
    version: str | None
    """None for a project whose version is dynamic."""
    source: Source
    is_project: bool
    """Whether this is the project at the lock's own directory."""
    is_virtual: bool
    """Whether uv only installs what it needs, and not the package itself (``package = false``)."""
    resolution_markers: tuple[str, ...]
    """The package holds where one of these is true; () means everywhere."""
    dependencies: tuple[Edge, ...]
    extras: Mapping[str, tuple[Edge, ...]] = NOTHING
    groups: Mapping[str, tuple[Edge, ...]] = NOTHING
    default_groups: tuple[str, ...] = ()


class Metadata(Frozen):
    """Requirements that the project states in place of a package's own (``dependency-metadata``)."""

    name: str
    version: str | None
    """The only version that it holds for; None means every one."""
    requires: tuple[str, ...]


class Rewrites(Frozen):
    """Where the resolution departs from what packages say of themselves, by the project's will (``[tool.uv]``)."""

    metadata: tuple[Metadata, ...] = ()
    overrides: tuple[str, ...] = ()
    """Requirements that replace every other one on the same name."""
    excludes: tuple[str, ...] = ()
    """Names that are never required."""


NO_REWRITES = Rewrites()


class Lock(Frozen):
    """One parsed lock file."""

    path: Path
    packages: tuple[Package, ...]
    rewrites: Rewrites = NO_REWRITES

    @property
    def project(self) -> Package:
        """The project that the lock belongs to; ``load_lock`` has made sure that there is one."""
        return next(package for package in self.packages if package.is_project)


def load_lock(path: Path) -> Lock:
    """Read a lock.

    Raises:
        LockError: it is missing, is no TOML, or has a form that this reader does not know.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise LockError(f"{path} does not exist: run uv lock in its project") from error
    except OSError as error:
        raise LockError(f"{path} cannot be read ({error.strerror})") from error
    return parse_lock(text, path)


def parse_lock(text: bytes, path: Path) -> Lock:
    """The lock whose content is ``text``; ``path`` is named in errors and kept.

    Raises:
        LockError: it is no TOML, or has a form that this reader does not know.
    """
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LockError(f"{path} is no valid TOML ({error}): restore it from version control") from error
    if (got := document.get("version")) != LOCK_VERSION:
        raise LockError(f"{path} has version {got!r}, this envguard reads {LOCK_VERSION}: use a matching uv")
    if document.get("conflicts"):
        raise LockError(f"{path} has conflicting extras, which envguard cannot judge: give each its own project")
    try:
        packages = tuple(_read_package(entry) for entry in document["package"])
        rewrites = _read_rewrites(document.get("manifest", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LockError(f"{path} is not as uv writes it ({type(error).__name__}: {error}): run uv lock") from error
    if sum(package.is_project for package in packages) != 1:
        raise LockError(f"{path} holds no package for its own directory: run uv lock in a project")
    return Lock(path=path, packages=packages, rewrites=rewrites)


def _read_package(entry: dict[str, Any]) -> Package:
    source = entry["source"]
    groups = {name: _read_edges(edges) for name, edges in entry.get("dev-dependencies", {}).items()}
    default_groups = entry.get("default-groups", ["dev"])  # uv writes the key where it is not its own default
    return Package(
        name=entry["name"],
        version=entry.get("version"),
        source=_read_source(source),
        is_project="." in (source.get("editable"), source.get("virtual"), source.get("directory")),
        is_virtual="virtual" in source,
        resolution_markers=tuple(entry.get("resolution-markers", ())),
        dependencies=_read_edges(entry.get("dependencies", ())),
        extras={name: _read_edges(edges) for name, edges in entry.get("optional-dependencies", {}).items()},
        groups=groups,
        default_groups=tuple(groups) if default_groups == "all" else tuple(default_groups),
    )


def _read_source(source: dict[str, str]) -> Source:
    [(kind, location)] = ((key, value) for key, value in source.items() if key in SOURCE_KINDS)
    return Source(kind=kind, location=location)


def _read_rewrites(manifest: dict[str, Any]) -> Rewrites:
    return Rewrites(
        metadata=tuple(
            Metadata(name=each["name"], version=each.get("version"), requires=tuple(each.get("requires-dist", ())))
            for each in manifest.get("dependency-metadata", ())
        ),
        overrides=tuple(_requirement(each) for each in manifest.get("overrides", ())),
        excludes=tuple(manifest.get("excludes", ())),
    )


def _requirement(entry: dict[str, Any]) -> str:
    """An override as a line of requirements; where it names a URL, any version satisfies it."""
    extras = f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""
    marker = f" ; {entry['marker']}" if entry.get("marker") else ""
    return f"{entry['name']}{extras}{entry.get('specifier', '')}{marker}"


def _read_edges(edges: Any) -> tuple[Edge, ...]:
    return tuple(
        Edge(
            name=edge["name"],
            version=edge.get("version"),
            marker=edge.get("marker"),
            extras=tuple(edge.get("extra", ())),
        )
        for edge in edges
    )
