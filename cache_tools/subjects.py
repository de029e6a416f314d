"""The two sides of ``diff``: snapshots, live cache directories, run directories, or this environment.

In: what the user typed. Out: a ``Subject`` each, and a ``Difference`` of two: the fingerprints field by field, the
entries by kind. A live directory is judged as this environment would use it. Contents are compared by digest where
they are at hand, else by size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cache_tools import records
from cache_tools.bundled import folders_of, kernels_in, without_kernels
from cache_tools.errors import storage_errors
from cache_tools.fingerprint import Comparison, Fingerprint, compare
from cache_tools.kinds import GPU_KINDS, GRAPHS, Kind, kind_of
from cache_tools.observe import observe
from cache_tools.relocate import is_group, roots_of, tokenise
from cache_tools.scan import Entry, scan
from cache_tools.store import NAME, Store
from envguard import atomic
from envguard.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """One entry of a subject."""

    size: int
    sha256: str | None
    """None where only a file has it, or nothing any more."""
    file: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One side."""

    title: str
    """Such as ``snapshot train-3f (c0ffee…)``."""
    fingerprint: Fingerprint
    entries: Mapping[str, Content] | None
    """None for an environment, which has none."""

    bundled_kernels: int = 0
    """Known of a snapshot only."""
    bundled: frozenset[str] = frozenset()
    """Entries that a snapshot may leave out, since a graph entry holds them too; known of a live directory only."""

    @property
    def gpu_kernels(self) -> bool:
        """Whether something in it was compiled for a GPU."""
        return self.bundled_kernels > 0 or any(kind_of(path) in GPU_KINDS for path in self.entries or ())


@dataclass(frozen=True, kw_only=True, slots=True)
class KindDifference:
    """Entries of one kind; paths are sorted."""

    kind: Kind
    same: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differing: tuple[str, ...]
    bundled: int
    """Of one side only, not listed: a graph entry there holds them too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two subjects compared; ``kinds`` is None where one of them has no entries."""

    a: Subject
    b: Subject
    comparison: Comparison
    kinds: tuple[KindDifference, ...] | None


def subject(given: str, store: Store | None) -> Subject:
    """What ``given`` names: a snapshot of ``store``, else a run directory, else a cache directory.

    Raises:
        UsageError: none of them.
        CorruptError: the snapshot is damaged.
    """
    if not given:
        raise UsageError("an empty path was given: is a variable unset? give a snapshot, a run or a cache directory")
    path = Path(given)
    if store is not None and NAME.fullmatch(given) and not (path.is_dir() and given not in store.names()):
        return _snapshot(given, store)
    if (path / "compile.json").is_file():
        return _run(path)
    if path.is_dir():
        return _live(path)
    raise UsageError(f"{given!r} is no snapshot, no run directory and no cache directory: see dflash cache list")


def environment() -> Subject:
    """This interpreter, machine and environment."""
    return Subject(title="this environment", fingerprint=observe(), entries=None)


def difference(a: Subject, b: Subject, *, strict: bool = False) -> Difference:
    """Compare using what ``a`` holds where ``b`` is.

    Raises:
        StorageError: a live file cannot be read.
    """
    comparison = compare(a.fingerprint, b.fingerprint, gpu_kernels=a.gpu_kernels, strict=strict)
    if a.entries is None or b.entries is None:
        return Difference(a=a, b=b, comparison=comparison, kinds=None)
    with storage_errors(f"comparing {a.title} and {b.title}"):
        bundled = a.bundled - b.entries.keys() | b.bundled - a.entries.keys()
        kinds = tuple(_compare_kind(kind, a.entries, b.entries, bundled) for kind in Kind)
    told = tuple(one for one in kinds if one.same or one.only_a or one.only_b or one.differing or one.bundled)
    return Difference(a=a, b=b, comparison=comparison, kinds=told)


def _compare_kind(
    kind: Kind, a: Mapping[str, Content], b: Mapping[str, Content], bundled: frozenset[str]
) -> KindDifference:
    left, right = ({path for path in side if kind_of(path) is kind} for side in (a, b))
    differing = tuple(path for path in sorted(left & right) if not _is_same(path, a[path], b[path]))
    return KindDifference(
        kind=kind,
        same=len(left & right) - len(differing),
        only_a=tuple(sorted(left - right - bundled)),
        only_b=tuple(sorted(right - left - bundled)),
        differing=differing,
        bundled=len((left ^ right) & bundled),
    )


def _is_same(path: str, a: Content, b: Content) -> bool:
    known = all(content.sha256 or content.file for content in (a, b))
    if not known:  # a run: it noted sizes, and that of a group file changes with the directory
        return a.size == b.size or is_group(path)
    return a.size == b.size and _digest(a) == _digest(b)


def _digest(content: Content) -> str | None:
    return content.sha256 or (atomic.sha256_file(content.file) if content.file else None)


def _snapshot(given: str, store: Store) -> Subject:
    id_ = store.resolve(given)
    manifest = store.read_manifest(id_)
    entries = {entry.path: Content(size=entry.size, sha256=entry.sha256) for entry in manifest.entries}
    return Subject(
        title=f"snapshot {given} ({id_[:12]})",
        fingerprint=manifest.fingerprint,
        entries=entries,
        bundled_kernels=manifest.kernels,
    )


def _run(path: Path) -> Subject:
    file = path / "compile.json"
    try:
        told = records.read_document(file)["fingerprint"]
        values = {str(name): None if value is None else str(value) for name, value in told["values"].items()}
        fingerprint = Fingerprint(key_version=int(told["key_version"]), values=values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} holds no fingerprint: give a run that compiled with this version") from error
    used = records.read_run(path).used
    entries = {name: Content(size=size, sha256=None) for name, size in used.items()}
    return Subject(title=f"run {path}", fingerprint=fingerprint, entries=entries)


def _live(path: Path) -> Subject:
    with storage_errors(f"reading {path}"):
        found = scan(path).entries
        entries = {entry.path: _content(path, entry) for entry in found}
        bundled = frozenset(_bundled(path, found))
    return Subject(title=f"directory {path}, used here", fingerprint=observe(), entries=entries, bundled=bundled)


def _bundled(cache_dir: Path, entries: Sequence[Entry]) -> Iterator[str]:
    """The files of Triton kernels that graph entries hold."""
    folders: set[str] = set()
    for entry in entries:
        if entry.kind in GRAPHS:
            with open(cache_dir / entry.path, "rb", buffering=0) as file:
                held = kernels_in(without_kernels(lambda at, length: os.pread(file.fileno(), length, at), entry.size))
            folders.update(folder for kernel in held for folder in folders_of(kernel))
    return (entry.path for entry in entries if os.path.dirname(entry.path) in folders)


def _content(cache_dir: Path, entry: Entry) -> Content:
    file = cache_dir / entry.path
    if is_group(entry.path):  # as a snapshot holds it: without the directory in it
        data = file.read_bytes()
        data = tokenise(data, roots_of(cache_dir)) or data
        return Content(size=len(data), sha256=atomic.sha256_bytes(data))
    return Content(size=entry.size, sha256=None, file=file)
