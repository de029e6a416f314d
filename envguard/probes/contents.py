"""The installed files against the RECORD of their distributions.

In: a site-packages directory, its distributions, and how closely to look. Out: ``Contents``. What cannot be read is a
value, never an exception. Bytecode is never compared: pip records digests of files that Python rewrites. It judges
nothing, applies no allow-list and imports nothing of what it reads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from envguard.frozen import Frozen
from envguard.probes import records
from envguard.probes.distributions import Distribution
from envguard.probes.hashing import ALGORITHMS, Progress, Wanted, digest_files
from envguard.probes.records import Row
from envguard.probes.tree import BYTECODE, Tree
from envguard.statcache import StatCache

Kind = Literal["missing", "size", "content", "unreadable"]


class ChangedFile(Frozen):
    """One file that is not what RECORD says."""

    distribution: str
    path: str
    """Relative to site-packages, as RECORD has it."""
    kind: Kind
    hash: str
    """What RECORD says, such as ``sha256=...``; "" where it says nothing."""
    lines: str | None = None
    """Which lines were changed, such as ``12-14, 30``; None where the original is not at hand."""
    in_cache: bool = False
    """Whether uv's cache holds the changed file too, so that reinstalling from it brings the change back."""


class Overlap(Frozen):
    """One file that several distributions own."""

    path: str
    distributions: tuple[str, ...]


class Contents(Frozen):
    """What a comparison of site-packages with its RECORDs tells."""

    hashed: Literal["watched", "everything"]
    """Which files' content was hashed; the others were compared by size."""
    changed: tuple[ChangedFile, ...]
    overlaps: tuple[Overlap, ...]
    """Without files that are empty in every RECORD: namespace packages share them by design."""
    unowned: tuple[str, ...]
    """Files that no RECORD names; a directory with no owned file stands for everything in it and ends in ``/``."""
    modules: tuple[str, ...]
    """Native modules and libraries (``*.so``) among the files."""
    bytecode: tuple[tuple[str, str], ...]
    """(file, what is wrong with it) of ``.pyc`` files that can run something else than their source; () unless
    everything is hashed."""
    elsewhere: tuple[str, ...]
    """Files that were looked at although the walk did not meet them: outside site-packages, or behind a link."""


def read_contents(
    site_packages: Path,
    distributions: Sequence[Distribution],
    tree: Tree,
    *,
    watched: frozenset[str],
    everything: bool,
    cache: StatCache,
    progress: Progress | None = None,
) -> Contents:
    """Compare the files in ``tree`` with the RECORDs of ``distributions``.

    By size; and by hash where ``everything`` is wanted, for the Python files of the ``watched`` distributions, and for
    what runs at every start.
    """
    rows = {dist.directory: records.read_rows(site_packages, dist.directory) for dist in distributions}
    names = {dist.directory: dist.name for dist in distributions}
    changed: list[ChangedFile] = []
    wanted: list[Wanted] = []
    claims: dict[str, tuple[str, Row]] = {}
    shared: dict[str, list[tuple[str, Row]]] = {}
    for directory, own in rows.items():
        name = names[directory]
        is_watched = name in watched
        for path, row in {row.path: row for row in own}.items():
            if path.endswith(".pyc"):
                continue
            if (other := claims.setdefault(path, (name, row)))[1] is not row:
                shared.setdefault(path, [other]).append((name, row))
            status = tree.files.get(path) or _status(site_packages, path)
            is_whole = type(status) is os.stat_result and status.st_size == row.size and stat.S_ISREG(status.st_mode)
            kind = None if is_whole else _judge(row, status)
            if kind is not None:
                changed.append(ChangedFile(distribution=name, path=path, kind=kind, hash=row.hash))
            elif (
                isinstance(status, os.stat_result)
                and row.hash
                and (everything or (is_watched and path.endswith(".py")) or records.is_startup(path))
            ):
                algorithm = row.hash.partition("=")[0]
                if algorithm in ALGORITHMS:
                    wanted.append(Wanted(path=path, status=status, algorithm=algorithm))
    digests = digest_files(site_packages, wanted, cache, progress, anew=everything)
    for each in wanted:
        digest = digests[each.path]
        for name, row in shared.get(each.path) or [claims[each.path]]:
            if row.hash.startswith(f"{each.algorithm}=") and digest != row.hash:
                kind = "unreadable" if digest is None else "content"
                changed.append(ChangedFile(distribution=name, path=each.path, kind=kind, hash=row.hash))
    return Contents(
        hashed="everything" if everything else "watched",
        changed=tuple(sorted(changed, key=lambda each: (each.distribution, each.path))),
        overlaps=_overlaps(shared),
        unowned=_unowned(tree, claims.keys(), names),
        modules=tuple(sorted(path for path in tree.files if path.endswith(".so"))),
        bytecode=_bytecode(site_packages, tree, {row.path for own in rows.values() for row in own})
        if everything
        else (),
        elsewhere=tuple(sorted({*claims, *(f"{directory}/RECORD" for directory in rows)} - tree.files.keys())),
    )


def _status(site_packages: Path, path: str) -> os.stat_result | OSError | None:
    """Of a file that the walk did not meet: outside site-packages, or behind a linked directory."""
    try:
        return os.stat(os.path.join(site_packages, path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        return error


def _judge(row: Row, status: os.stat_result | OSError | None) -> Kind | None:
    if status is None:
        return "missing"
    if isinstance(status, OSError) or not stat.S_ISREG(status.st_mode):
        return "unreadable"
    return "size" if row.size is not None and row.size != status.st_size else None


def _overlaps(shared: Mapping[str, list[tuple[str, Row]]]) -> tuple[Overlap, ...]:
    found = []
    for path, owners in shared.items():
        if any(row.size != 0 for _, row in owners):
            names = tuple(sorted({name for name, _ in owners}))
            if len(names) > 1:
                found.append(Overlap(path=path, distributions=names))
    return tuple(sorted(found, key=lambda each: each.path))


def _unowned(tree: Tree, owned: Iterable[str], metadata: Iterable[str]) -> tuple[str, ...]:
    files = set(owned)
    populated = {""}
    for path in files:
        parent = path.rpartition("/")[0]
        while parent not in populated:
            populated.add(parent)
            parent = parent.rpartition("/")[0]
    notes = tuple(f"{directory}/" for directory in metadata)
    found = set()
    for path in tree.files:
        if path not in files and not path.endswith(".pyc") and not f"{path}/".startswith(notes):
            found.add(_top(path, populated))
    found |= {
        _top(f"{path}/", populated)
        for path in tree.directories
        if path not in populated and path not in files and f"{path}/" not in notes
    }
    return tuple(sorted(found))


def _top(path: str, populated: set[str]) -> str:
    """The highest directory above ``path`` that holds no owned file, else ``path`` itself."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        directory = "/".join(parts[:depth])
        if directory not in populated:
            return directory + "/"
    return path


def _bytecode(site_packages: Path, tree: Tree, owned: set[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for path in tree.bytecode:
        directory, _, name = path.rpartition("/")
        if not name.endswith(".pyc"):
            continue
        source = f"{directory.removesuffix(BYTECODE)}{name.partition('.')[0]}.py"
        if source not in tree.files and path not in owned:
            found.append((path, f"its source {source} is gone"))
        elif _is_unchecked(os.path.join(site_packages, path)):
            found.append((path, "Python runs it without comparing it with its source"))
    for path in tree.files:
        if path.endswith(".pyc") and path not in owned:
            found.append((path, "it can be imported without any source, and no distribution owns it"))
    return tuple(sorted(found))


def _is_unchecked(path: str) -> bool:
    """Whether the flags of the header (PEP 552) say hash-based and not checked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as handle:
            return int.from_bytes(handle.read(8)[4:8], "little") & 0b11 == 0b01
    except OSError:
        return False
