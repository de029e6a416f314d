"""LCK: the lock. In: an ``Inspection``. Out: problems. uv's verdict was fetched before; no check calls uv."""

from __future__ import annotations

from collections.abc import Iterable

from envguard.errors import ProbeError
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.lock import Lock
from envguard.pkg import canonical


def _is_fresh(case: Inspection) -> Iterable[Problem] | Skip:
    if case.expected is None:
        return case.without_lock()
    if case.lock_check is None:
        return Skip(reason="uv was not asked: this is the fast tier")
    if case.lock_check.is_fresh is None:
        raise ProbeError(case.lock_check.detail)
    if case.lock_check.is_fresh:
        return ()
    problem = Problem(
        subject=case.lock.name,
        message=f"{case.lock} does not follow from its pyproject.toml: {case.lock_check.detail}",
        repair=Repair(lock=True, sync=True),
    )
    return (problem,)


def _is_readable(case: Inspection) -> Iterable[Problem] | Skip:
    if case.lock_problem is None:
        return ()
    if not case.lock_exists and case.profile.unlocked:
        return Skip(reason="the profile is declared as unlocked, see LCK004")
    repair = Repair() if case.lock_exists else Repair(lock=True, sync=True)
    return (Problem(subject=case.lock.name, message=case.lock_problem, repair=repair),)


def _is_locked(case: Inspection) -> Iterable[Problem] | Skip:
    if case.profile.unlocked is None:
        return ()
    if not case.lock_exists:
        return Skip(reason=f"profile {case.profile.name} has no lock yet: {case.profile.unlocked}")
    problem = Problem(
        subject=case.lock.name,
        message=f"profile {case.profile.name} says that it is unlocked, and {case.lock} exists",
        fix=f"delete the key unlocked of profile {case.profile.name} from {case.policy.path.name}",
    )
    return (problem,)


def _is_steady(case: Inspection) -> Iterable[Problem] | Skip:
    base = case.base
    if base is None:
        return Skip(reason="no base to compare the lock with was named (--base)")
    if case.expected is None:
        return case.without_lock()
    if base.problem is not None:
        raise ProbeError(base.problem)
    if base.before is None or base.after is None:
        return Skip(reason=f"{base.name} has no {case.lock.name} for this profile")
    if base.policy_changed:
        return ()  # a move that the policy goes along with is reviewed with it
    before, after = _entries(base.before), _entries(base.after)
    protected = {canonical(name) for name in (*case.policy.watched, *(name for name, _ in case.profile.packages))}
    return [
        Problem(
            subject=name,
            message=f"{name} moves from {_describe(before[name])} to {_describe(after.get(name, ()))} in "
            f"{case.lock.name} against {base.name}, and {case.policy.path.name} does not change with it",
            expected=_describe(before[name]),
            observed=_describe(after.get(name, ())),
        )
        for name in sorted(protected & before.keys())
        if before[name] != after.get(name, ())
    ]


def _entries(lock: Lock) -> dict[str, tuple[tuple[str, str, str], ...]]:
    """Each name's versions and sources, without what else may change around them."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for package in lock.packages:
        entry = (package.version or "(no version)", package.source.kind, package.source.location)
        found.setdefault(canonical(package.name), set()).add(entry)
    return {name: tuple(sorted(entries)) for name, entries in found.items()}


def _describe(entries: tuple[tuple[str, str, str], ...]) -> str:
    return " and ".join(f"{version} ({kind} {location})" for version, kind, location in entries) or "nothing"


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="LCK001",
        summary="the lock follows from pyproject.toml",
        why="A stale lock installs what an older pyproject.toml asked for, and uv run may rewrite it in passing.",
        fix="run uv lock, review the difference, and commit it",
        run=_is_fresh,
        tier="standard",
    ),
    Check(
        id="LCK002",
        summary="the lock is there and can be read",
        why="Without it nobody knows what the environment should hold; uv sync --check passes when it is missing.",
        fix="restore uv.lock from version control",
        run=_is_readable,
    ),
    Check(
        id="LCK003",
        summary="the lock moves no protected package unless the policy changes with it",
        why="Refreshing a lock for one package may move torch or transformers in passing, to another version or to "
        "another index. Protected are the policy's watched distributions and the profile's pins; who means to move one "
        "says so in envguard.toml in the same change. It is judged where --base names what to compare with.",
        fix="lock again with uv lock --upgrade-package for what was meant only, or change envguard.toml with it",
        run=_is_steady,
        tier="standard",
        example="torch moves from 2.11.0 (registry …) to 2.10.0 (registry …) in uv.lock against origin/main, and "
        "envguard.toml does not change with it",
    ),
    Check(
        id="LCK004",
        summary="a profile that is declared unlocked has no lock",
        why="A lock that cannot be made yet is skipped with its reason instead of being written by hand; once it "
        "exists, the excuse must go, or a lost lock would pass.",
        fix="make the lock where its index is in reach",
        run=_is_locked,
        severity="warn",
    ),
)
