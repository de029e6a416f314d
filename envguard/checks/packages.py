"""PKG: which distributions are installed. In: an ``Inspection``. Out: problems. Content of files is not judged here."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import groupby, pairwise

from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.pkg import canonical, same_version, version
from envguard.probes.distributions import Distribution

SYNC = Repair(sync=True)


def _matches(name: str, globs: tuple[str, ...]) -> str | None:
    return next((glob for glob in globs if fnmatchcase(name, canonical(glob))), None)


def _is_leftover(dist: Distribution) -> bool:
    return dist.name.startswith("~")  # pip renames what it is about to delete; PKG006 reports it


def _missing(case: Inspection) -> Iterable[Problem] | Skip:
    if case.expected is None:
        return case.without_lock()
    installed = {dist.name for dist in case.observation.distributions}
    return [
        Problem(
            subject=name,
            message=f"{name} {locked or ''}".rstrip() + " is locked and not installed",
            expected=locked,
            repair=SYNC,
        )
        for name, locked in sorted(case.expected.required.items())
        if name not in installed
    ]


def _wrong_version(case: Inspection) -> Iterable[Problem]:
    pins = {canonical(name): pin for name, pin in case.profile.packages}
    several = {first.name for first, second in pairwise(case.observation.distributions) if first.name == second.name}
    for dist in case.observation.distributions:
        if dist.name in several:
            continue  # which of the two is installed is PKG005's question
        locked = case.expected.version(dist.name) if case.expected else None
        for wanted, origin in ((locked, case.lock.name), (pins.get(dist.name), f"profile {case.profile.name}")):
            if wanted is None or same_version(dist.version, wanted) or _is_torch_build(case, dist, wanted):
                continue
            yield Problem(
                subject=dist.name,
                message=f"{dist.name} {dist.version or '(no version)'} is installed, and {origin} says {wanted}",
                expected=wanted,
                observed=dist.version,
                repair=SYNC,
            )
            break


def _is_torch_build(case: Inspection, dist: Distribution, wanted: str) -> bool:
    """Whether only torch's local label differs while the profile lists builds: BLD001 judges that."""
    if dist.name != "torch" or not case.profile.torch:
        return False
    installed, locked = version(dist.version), version(wanted)
    return installed is not None and locked is not None and installed.public == locked.public


def _unexpected(case: Inspection) -> Iterable[Problem] | Skip:
    expected = case.expected
    if expected is None:
        return case.without_lock()
    return [
        Problem(
            subject=dist.name,
            message=f"{dist.name} {dist.version}".rstrip() + f" is installed, and {case.lock.name} does not name it",
            observed=dist.version,
            severity=case.policy.unexpected,
            repair=_removal(case, dist),
        )
        for dist in case.observation.distributions
        if not expected.knows(dist.name)
        and not _is_leftover(dist)
        and not _matches(dist.name, case.policy.allow)
        and not _matches(dist.name, case.policy.forbid)
    ]


def _removal(case: Inspection, dist: Distribution) -> Repair:
    """Removing ``dist`` also removes the scripts that it overwrote: reinstall whose they were."""
    robbed = {
        other.name
        for other in case.observation.distributions
        if other.name != dist.name and not set(other.scripts).isdisjoint(dist.scripts)
    }
    return Repair(sync=True, reinstall=tuple(sorted(robbed)))


def _forbidden(case: Inspection) -> Iterable[Problem]:
    names = {dist.name for dist in case.observation.distributions}
    for dist in case.observation.distributions:
        if glob := _matches(dist.name, case.policy.forbid):
            yield Problem(
                subject=dist.name,
                message=f"{dist.name} {dist.version} is installed, and {case.policy.path.name} forbids {glob}",
                observed=dist.version,
                repair=_removal(case, dist),
            )
    for directory in case.observation.directories:
        if (glob := _matches(canonical(directory), case.policy.forbid)) and canonical(directory) not in names:
            place = case.observation.interpreter.site_packages / directory
            yield Problem(
                subject=directory,
                message=f"{place} can be imported without being installed, and {case.policy.path.name} forbids {glob}",
                observed=str(place),
                fix=f"delete {place}: no package manager knows it, unless another forbidden distribution owns it",
            )


def _duplicated(case: Inspection) -> Iterable[Problem]:
    for name, group in groupby(case.observation.distributions, key=lambda dist: dist.name):
        directories = [dist.directory for dist in group]
        if len(directories) > 1:
            yield Problem(
                subject=name,
                message=f"{name} has {len(directories)} metadata directories: {', '.join(directories)}",
                expected="1",
                observed=str(len(directories)),
                repair=Repair(sync=True, reinstall=(name,)),
            )


def _damaged(case: Inspection) -> Iterable[Problem]:
    for dist in case.observation.distributions:
        if dist.problem is None:
            continue
        place = case.observation.interpreter.site_packages / dist.directory
        yield Problem(
            subject=dist.name,
            message=f"{dist.directory} is damaged: {dist.problem}",
            fix=None if dist.has_record else f"delete {place}, which uv cannot uninstall, then uv sync --locked",
            repair=_reinstall(case, dist) if dist.has_record else Repair(sync=True, delete=(str(place),)),
        )


def _scripts(case: Inspection) -> Iterable[Problem]:
    for dist in case.observation.distributions:
        if case.expected is not None and not case.expected.knows(dist.name):
            continue  # not ours to repair: PKG003 judges whether it may be here at all
        for script in dist.scripts:
            if script not in case.observation.programs:
                place = case.observation.interpreter.prefix / "bin" / script
                yield Problem(
                    subject=dist.name,
                    message=f"{dist.name} declares the command {script}, and {place} does not exist",
                    expected=str(place),
                    repair=_reinstall(case, dist),
                )


def _reinstall(case: Inspection, dist: Distribution) -> Repair:
    """uv reinstalls only what the lock names."""
    known = case.expected is not None and case.expected.knows(dist.name)
    return Repair(sync=True, reinstall=(dist.name,) if known else ())


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="PKG001",
        summary="everything that the lock requires is installed",
        why="Required are the project, its dependencies and its default groups, with all that they need on this "
        "Python. What is missing fails at the first import, possibly hours into a run.",
        fix="uv sync --locked",
        run=_missing,
    ),
    Check(
        id="PKG002",
        summary="every installed version is the locked (or pinned) one",
        why="transformers changed masks and caches between minor versions; a run is only comparable with another one "
        "that had the same versions.",
        fix="uv sync --locked",
        run=_wrong_version,
    ),
    Check(
        id="PKG003",
        summary="nothing is installed that the lock does not name",
        why="Packages change what others do by being importable, and installing them moves shared requirements. "
        "uv run keeps what uv pip install left behind; only uv sync removes it.",
        fix="uv sync --locked removes it; if it belongs here, add it with uv add",
        run=_unexpected,
    ),
    Check(
        id="PKG004",
        summary="no forbidden distribution or import directory is present",
        why="The policy forbids what is known to move torch or to change numerics, serving stacks above all.",
        fix="uv sync --locked removes it; give it an environment of its own",
        run=_forbidden,
    ),
    Check(
        id="PKG005",
        summary="every distribution has one metadata directory",
        why="With two, each tool picks another version as the installed one, and files of both may lie there.",
        fix="reinstall the distribution",
        run=_duplicated,
    ),
    Check(
        id="PKG006",
        summary="every distribution has readable METADATA and a RECORD",
        why="An interrupted install leaves them empty: the version reads as None, and nothing can uninstall or verify "
        "the distribution.",
        fix="reinstall the distribution",
        run=_damaged,
    ),
    Check(
        id="PKG010",
        summary="every command that a distribution declares is in the environment's bin",
        why="Two distributions can declare one command, and the last one installed owns it; removing that one takes "
        "the command away from the other, which no package manager notices.",
        fix="reinstall the distribution",
        run=_scripts,
    ),
)
