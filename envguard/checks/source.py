"""SRC: the project's own code. In: an ``Inspection``. Out: problems. The policy's ``source`` says what it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from envguard.findings import Check, Problem, Skip
from envguard.inspection import Inspection

if TYPE_CHECKING:
    from envguard.probes.source import SourceCode

SHOWN = 5
"""Paths that a message names; the rest is counted."""


def _source(case: Inspection) -> SourceCode | Skip:
    case.around.demand("source")
    if not case.policy.source:
        return Skip(reason="the policy names no source")
    if case.around.source is None:
        return Skip(reason="the source is not read in the fast tier")
    return case.around.source


def _recorded_code(case: Inspection) -> Iterable[Problem] | Skip:
    source = _source(case)
    if isinstance(source, Skip):
        return source
    if case.around.recorded is None:
        return Skip(reason="the policy names no recorded environment")
    if case.around.recorded.problem is not None:
        return Skip(reason=f"{case.around.recorded.problem}, see BLD002")
    if (recorded := case.around.recorded.code) is None:
        return Skip(reason=f"{case.around.recorded.path.name} holds no code of the project")
    changed = {path for path in {*recorded, *source.files} if recorded.get(path) != source.files.get(path)}
    return [
        Problem(
            subject=entry,
            message=f"{len(paths)} files of {entry} are not those of {case.around.recorded.path.name}: {_some(paths)}",
        )
        for entry, paths in _by_entry(case, changed)
    ]


def _committed(case: Inspection) -> Iterable[Problem] | Skip:
    source = _source(case)
    if isinstance(source, Skip):
        return source
    if source.uncommitted is None:
        return Skip(reason=source.git_problem or "git cannot tell")
    return [
        Problem(subject=entry, message=f"{len(paths)} files of {entry} are not as committed: {_some(paths)}")
        for entry, paths in _by_entry(case, source.uncommitted)
    ]


def _by_entry(case: Inspection, paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    """``paths`` by the entry of the policy's ``source`` that they lie in."""
    left = sorted(paths)
    groups: list[tuple[str, list[str]]] = []
    for entry in case.policy.source:
        prefix = entry.strip("/").removeprefix("./")
        inside = [path for path in left if prefix == "." or path == prefix or path.startswith(f"{prefix}/")]
        left = [path for path in left if path not in inside]
        if inside:
            groups.append((entry, inside))
    return groups


def _some(paths: list[str]) -> str:
    rest = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + rest


def _remote_code(case: Inspection) -> Iterable[Problem] | Skip:
    source = _source(case)
    if isinstance(source, Skip):
        return source
    return [
        Problem(
            subject=f"{each.path}:{each.line}",
            message=f"{each.path}:{each.line} trusts remote code "
            + (f"at revision {each.revision!r}, which can move" if each.revision else "without a revision"),
            expected="revision= and a commit of 40 hex digits",
            observed=each.revision,
        )
        for each in source.unpinned
    ]


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="SRC001",
        summary="the project's own code is that of the recorded environment",
        why="A result belongs to the code that made it; where env.json recorded that code, other code is drift.",
        fix="check the recorded code out, or record the new one with envguard freeze",
        run=_recorded_code,
        tier="standard",
        example="1 files of dflash are not those of env.json: dflash/drafter.py",
    ),
    Check(
        id="SRC002",
        summary="the project's own code is committed",
        why="Code that no commit holds cannot be had again when the run turns out to be the good one.",
        fix="commit it, or stash it",
        run=_committed,
        severity="warn",
        tier="standard",
        example="2 files of dflash are not as committed: dflash/drafter.py, dflash/new.py",
    ),
    Check(
        id="SRC003",
        summary="remote code is trusted only at a full commit",
        why="trust_remote_code=True runs whatever the repository holds at that moment; a branch or a tag can move "
        "between two starts of the same run. A revision that only the running program knows is taken as pinned.",
        fix="pass revision= with the commit, 40 hex digits",
        run=_remote_code,
        tier="standard",
        example="dflash/target.py:41 trusts remote code without a revision",
    ),
)
