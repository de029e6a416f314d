"""INT: files that no distribution owns. In: an ``Inspection``. Out: problems.

What another check reports (a missing distribution, a forbidden directory, a shadowed import) is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from envguard.checks.causes import MAX_FILES, MAX_NAMED, NOT_COMPARED, NOT_HASHED, broken, is_leftover_of_another_check
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection


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
    startup = {each.path.partition("/")[0] for each in case.observation.startup}  # INT006
    paths = [
        path
        for path in contents.unowned
        if path.partition("/")[0] not in startup
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
        is_inside = not each.path.startswith("/")
        place = site_packages / (each.path.partition("/")[0] if is_inside else each.path)
        does = "runs code" if each.runs_code else f"adds {', '.join(each.adds) or 'nothing that exists'} to sys.path"
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
