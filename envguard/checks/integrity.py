"""INT: the installed files against RECORD. In: an ``Inspection``. Out: problems.

One cause is one finding: what another check reports (a missing distribution, two metadata directories, a damaged
RECORD, a command in ``bin``, a wrong build of torch) is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING

from envguard.checks.build import rejects_torch
from envguard.checks.causes import (
    MAX_FILES,
    MAX_NAMED,
    NOT_COMPARED,
    NOT_HASHED,
    broken,
    is_script,
    only_names,
    reinstall,
)
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection

if TYPE_CHECKING:
    from envguard.probes.contents import ChangedFile, Contents


def _incomplete(case: Inspection) -> Iterable[Problem] | Skip:
    contents = case.observation.contents
    if contents is None:
        return NOT_COMPARED
    watched = _watched(case)
    bad = [
        each
        for each in _changed(case, contents)
        if each.kind != "content" and not (each.kind == "size" and _is_code(each, watched))
    ]
    return [_per_distribution(case, name, files) for name, files in _grouped(bad)]


def _edited(case: Inspection) -> Iterable[Problem] | Skip:
    contents = case.observation.contents
    if contents is None:
        return NOT_COMPARED
    watched = _watched(case)
    bad = [each for each in _changed(case, contents) if each.kind in ("size", "content") and _is_code(each, watched)]
    problems: list[Problem] = []
    for name, files in _grouped(bad):
        problems += (
            [_per_file(case, each) for each in files]
            if len(files) <= MAX_FILES
            else [_per_distribution(case, name, files)]
        )
    return problems


def _altered(case: Inspection) -> Iterable[Problem] | Skip:
    contents = case.observation.contents
    if contents is None or contents.hashed != "everything":
        return NOT_HASHED
    watched = _watched(case)
    bad = [each for each in _changed(case, contents) if each.kind == "content" and not _is_code(each, watched)]
    return [_per_distribution(case, name, files) for name, files in _grouped(bad)]


def _watched(case: Inspection) -> frozenset[str]:
    return frozenset(only_names(case.policy.watched))


def _is_code(each: ChangedFile, watched: frozenset[str]) -> bool:
    """Whether INT002 judges it: Python of a watched distribution, or what runs at every start."""
    return (each.distribution in watched and each.path.endswith(".py")) or (
        each.path.endswith(".pth") and "/" not in each.path
    )


def _changed(case: Inspection, contents: Contents) -> Iterable[ChangedFile]:
    """What no other check reports."""
    shared = {each.path for each in contents.overlaps}
    damaged, several = broken(case.observation.distributions)
    notes = tuple(f"{directory}/" for directory in damaged)
    for each in contents.changed:
        if each.path in shared or each.distribution in several or each.path.startswith(notes):
            continue  # INT004, PKG005, PKG006
        if is_script(case, each.path) and each.kind == "missing":
            continue  # PKG010
        if each.path == "torch/version.py" and rejects_torch(case):
            continue  # BLD001
        yield each


def _grouped(files: Iterable[ChangedFile]) -> list[tuple[str, list[ChangedFile]]]:
    return [(name, list(group)) for name, group in groupby(files, key=lambda each: each.distribution)]


def _per_distribution(case: Inspection, name: str, files: Sequence[ChangedFile]) -> Problem:
    said = [f"{each.path} {_describe(each)}" for each in files[:MAX_NAMED]]
    rest = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    count = "one file is" if len(files) == 1 else f"{len(files)} files are"
    return Problem(
        subject=name,
        message=f"{name}: {count} not as installed: {'; '.join(said)}{rest}",
        expected="what RECORD says",
        observed=", ".join(each.path for each in files[:MAX_FILES]),
        fix=_polluted_fix(files),
        repair=_repair(case, files),
    )


def _per_file(case: Inspection, each: ChangedFile) -> Problem:
    return Problem(
        subject=each.path,
        message=f"{each.distribution}: {each.path} {_describe(each)}",
        expected=each.hash or None,
        observed=None if each.lines is None else f"lines {each.lines} differ from the wheel",
        fix=_polluted_fix([each]),
        repair=_repair(case, [each]),
    )


def _describe(each: ChangedFile) -> str:
    if each.kind == "missing":
        return "is missing"
    if each.kind == "unreadable":
        return "cannot be read as a file"
    lines = f" (lines {each.lines})" if each.lines is not None else ""
    cached = ", in uv's cache too" if each.in_cache else ""
    return (
        f"was edited after installation{lines}{cached}"
        if lines or each.path.endswith(".py")
        else (f"has another {each.kind} than was installed{cached}")
    )


def _polluted_fix(files: Sequence[ChangedFile]) -> str | None:
    if not any(each.in_cache for each in files):
        return None
    name = files[0].distribution
    return (
        f"uv cache clean {name} && uv sync --locked --reinstall-package {name}: uv's cache holds the change too (it "
        f"installs by hard link), so that reinstalling alone brings it back; other environments made from it have it "
        "as well"
    )


def _repair(case: Inspection, files: Sequence[ChangedFile]) -> Repair:
    name = files[0].distribution
    clean = (name,) if any(each.in_cache for each in files) else ()
    return reinstall(case, name, clean=clean)


def _overlapping(case: Inspection) -> Iterable[Problem] | Skip:
    contents = case.observation.contents
    if contents is None:
        return NOT_COMPARED
    _, several = broken(case.observation.distributions)
    shared = [
        each
        for each in contents.overlaps
        if not any(fnmatchcase(each.path, glob) for glob in case.policy.allow_overlap)
        and not set(each.distributions) <= several
        and not (
            each.path.startswith("../") and not _are_expected(case, each.distributions)
        )  # PKG003 removes the thief
    ]
    problems = []
    for owners, group in groupby(
        sorted(shared, key=lambda each: each.distributions), key=lambda each: each.distributions
    ):
        paths = [each.path for each in group]
        rest = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
        known = tuple(name for name in owners if case.expected is not None and case.expected.knows(name))
        problems.append(
            Problem(
                subject=", ".join(owners),
                message=f"{' and '.join(owners)} both own {', '.join(paths[:MAX_NAMED])}{rest}: the last one installed "
                "won",
                observed=", ".join(paths[:MAX_FILES]),
                repair=Repair(sync=True, reinstall=known) if len(known) == 1 else Repair(),
            )
        )
    return problems


def _are_expected(case: Inspection, names: Iterable[str]) -> bool:
    return case.expected is None or all(case.expected.knows(name) for name in names)


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="INT001",
        summary="every installed file is there and has the size that RECORD says",
        why="A deleted or half-written file fails at its first import, possibly hours into a run; uv sync does not "
        "notice.",
        fix="uv sync --locked --reinstall-package with the distribution's name",
        run=_incomplete,
        tier="standard",
    ),
    Check(
        id="INT002",
        summary="the Python files of the watched distributions, and what runs at every start, are as installed",
        why="A file edited in site-packages changes results on this machine only, and no package manager notices. "
        "Where uv installed by hard link, the edit is in its cache and in other environments too.",
        fix="uv sync --locked --reinstall-package with the distribution's name; keep a needed change as a patch in "
        "your code",
        run=_edited,
        tier="standard",
    ),
    Check(
        id="INT003",
        summary="every installed file has the content that RECORD says",
        why="A library that was patched, or that a disk corrupted, keeps its size.",
        fix="uv sync --locked --reinstall-package with the distribution's name",
        run=_altered,
        tier="deep",
    ),
    Check(
        id="INT004",
        summary="no file belongs to two distributions",
        why="The last one installed wins, and uninstalling either breaks the other. Wheels for two CUDA releases do "
        "this.",
        fix="keep one of them, then uv sync --locked --reinstall-package with its name",
        run=_overlapping,
        tier="standard",
    ),
)
