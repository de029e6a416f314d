"""INT: the installed files against RECORD. In: an ``Inspection``. Out: problems.

One cause is one finding: what another check reports (a missing distribution, two metadata directories, a damaged RECORD,
a command in ``bin``, a wrong build of torch) is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING

from envguard.checks.build import is_rejected_version_file
from envguard.checks.causes import broken, is_leftover_of_another_check, is_script, only_names, reinstall
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection

if TYPE_CHECKING:
    from envguard.probes.contents import ChangedFile, Contents

MAX_FILES = 10
"""Findings of one kind that are told one by one; more become one finding for the distribution or directory."""
MAX_NAMED = 3

NOT_COMPARED = Skip(reason="the files were not compared with RECORD: this is the fast tier")
NOT_HASHED = Skip(reason="only --deep hashes every file")


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
        if each.distribution == "torch" and is_rejected_version_file(case, each.path):
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
        f"uv cache clean {name} && uv sync --locked --reinstall-package {name}: uv's cache holds the change too (it installs "
        "by hard link), so that reinstalling alone brings it back; other environments made from it have it as well"
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
                message=f"{' and '.join(owners)} both own {', '.join(paths[:MAX_NAMED])}{rest}: the last one installed won",
                observed=", ".join(paths[:MAX_FILES]),
                repair=Repair(sync=True, reinstall=known) if len(known) == 1 else Repair(),
            )
        )
    return problems


def _are_expected(case: Inspection, names: Iterable[str]) -> bool:
    return case.expected is None or all(case.expected.knows(name) for name in names)


def _unowned(case: Inspection) -> Iterable[Problem] | Skip:
    contents = case.observation.contents
    if contents is None:
        return NOT_COMPARED
    damaged, _ = broken(case.observation.distributions)
    unknown = sorted({*damaged, *(dist.directory for dist in case.observation.distributions if not dist.has_record)})
    if unknown:
        return Skip(
            reason=f"the RECORD of {', '.join(unknown[:MAX_NAMED])} is missing or damaged, so its files look unowned"
        )
    startup = {each.path for each in case.observation.startup}
    paths = [
        path
        for path in contents.unowned
        if path not in startup
        and not path.endswith((".dist-info/", ".egg-info/", ".egg-info"))
        and path not in ("README.txt", "_virtualenv.py")
        and not any(
            fnmatchcase(path, glob) or fnmatchcase(path.rstrip("/"), glob) for glob in case.policy.allow_unowned
        )
        and not is_leftover_of_another_check(case, path)
    ]
    problems = []
    for top, group in groupby(paths, key=lambda path: path.partition("/")[0]):
        files = list(group)
        if len(files) > MAX_FILES:
            problems.append(_stray(case, f"{top}/", f"{len(files)} files in {top}/ belong", files))
        else:
            problems += [_stray(case, path, f"{path} belongs", [path]) for path in files]
    return problems


def _stray(case: Inspection, subject: str, said: str, files: Sequence[str]) -> Problem:
    place = case.observation.interpreter.site_packages
    return Problem(
        subject=subject,
        message=f"{said} to no installed distribution",
        observed=", ".join(files[:MAX_FILES]),
        fix=f"look at {place / files[0]} and delete it, or allow it in {case.policy.path.name}, [files] allow-unowned",
    )


def _startup(case: Inspection) -> Iterable[Problem]:
    site_packages = case.observation.interpreter.site_packages
    for each in case.observation.startup:
        if each.owner is not None or any(fnmatchcase(each.path, glob) for glob in case.policy.allow_unowned):
            continue
        place = site_packages / each.path  # an absolute path stays itself
        does = "runs code" if each.runs_code else f"adds {', '.join(each.adds) or 'nothing that exists'} to sys.path"
        is_inside = each.path == each.path.lstrip("/")
        yield Problem(
            subject=each.path,
            message=f"{place} {does} at every start of Python, and no distribution owns it",
            observed=str(place),
            fix=f"delete {place}, or allow it in {case.policy.path.name}, [files] allow-unowned",
            repair=Repair(delete=(str(place),)) if is_inside else Repair(),
        )


def _bytecode(case: Inspection) -> Iterable[Problem] | Skip:
    contents = case.observation.contents
    if contents is None or contents.hashed != "everything":
        return NOT_HASHED
    problems = []
    for top, group in groupby(contents.bytecode, key=lambda each: each[0].partition("/")[0]):
        found = list(group)
        if len(found) > MAX_FILES:
            found = [(f"{top}/", f"{len(found)} files, such as {found[0][0]}: {found[0][1]}")]
        problems += [
            Problem(
                subject=path,
                message=f"{path}: {what}",
                observed=path,
                fix=f"delete {case.observation.interpreter.site_packages / path}",
            )
            for path, what in found
        ]
    return problems


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="INT001",
        summary="every installed file is there and has the size that RECORD says",
        why="A deleted or half-written file fails at its first import, possibly hours into a run; uv sync does not notice.",
        fix="uv sync --locked --reinstall-package with the distribution's name",
        run=_incomplete,
        tier="standard",
    ),
    Check(
        id="INT002",
        summary="the Python files of the watched distributions, and what runs at every start, are as installed",
        why="A file edited in site-packages changes results on this machine only, and no package manager notices. Where uv "
        "installed by hard link, the edit is in its cache and in other environments too.",
        fix="uv sync --locked --reinstall-package with the distribution's name; keep a needed change as a patch in your code",
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
        why="The last one installed wins, and uninstalling either breaks the other. Wheels for two CUDA releases do this.",
        fix="keep one of them, then uv sync --locked --reinstall-package with its name",
        run=_overlapping,
        tier="standard",
    ),
    Check(
        id="INT005",
        summary="every file in site-packages belongs to an installed distribution",
        why="What an uninstalled or interrupted package left behind can still be imported, and looks like a package to "
        "whoever only asks whether the import works.",
        fix="delete it, or allow it in envguard.toml, [files] allow-unowned",
        run=_unowned,
        severity="warn",
        tier="standard",
    ),
    Check(
        id="INT006",
        summary="nothing unknown runs at every start of Python",
        why="A .pth file, sitecustomize or usercustomize that no distribution owns can change any import, unseen.",
        fix="delete it, or allow it in envguard.toml, [files] allow-unowned",
        run=_startup,
    ),
    Check(
        id="INT007",
        summary="no bytecode file can run something else than its source",
        why="Python executes a .pyc marked unchecked without looking at the source, and imports one that stands alone.",
        fix="delete it; Python writes a new one",
        run=_bytecode,
        severity="warn",
        tier="deep",
    ),
)
