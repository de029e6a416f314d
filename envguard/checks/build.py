"""BLD: which build of a version is installed. In: an ``Inspection``. Out: problems. torch is never imported."""

from __future__ import annotations

from collections.abc import Iterable

from envguard.checks.causes import reinstall
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.pkg import same_version
from envguard.policy import TorchRule
from envguard.probes.torch_build import TorchBuild


def _torch_build(case: Inspection) -> Iterable[Problem] | Skip:
    rules, build = case.profile.torch, case.observation.torch
    if not rules:
        return Skip(reason=f"profile {case.profile.name} names no build of torch")
    repair = Repair(sync=True, reinstall=("torch",))
    if case.observation.torch_problem is not None:
        return (Problem(subject="torch", message=case.observation.torch_problem, repair=repair),)
    if build is None:
        return Skip(reason="torch is not installed")
    if any(_accepts(rule, build) for rule in rules):
        return ()
    expected = " or ".join(_describe(rule) for rule in rules)
    problem = Problem(
        subject="torch",
        message=f"torch is {_describe(build)}, and profile {case.profile.name} wants {expected}",
        expected=expected,
        observed=_describe(build),
        repair=repair,
    )
    return (problem,)


def rejects_torch(case: Inspection) -> bool:
    """Whether BLD001 reports the installed torch."""
    build = case.observation.torch
    is_accepted = build is not None and any(_accepts(rule, build) for rule in case.profile.torch)
    return bool(case.profile.torch) and not is_accepted


def _accepts(rule: TorchRule, build: TorchBuild) -> bool:
    return (
        same_version(rule.version, build.version)
        and rule.cuda in (None, build.cuda)
        and rule.git_version in (None, build.git_version)
    )


def _recorded(case: Inspection) -> Iterable[Problem] | Skip:
    recorded = case.recorded
    if recorded is None:
        return Skip(reason=f"{case.policy.path.name} names no recorded environment to compare with")
    if recorded.problem is not None:
        return (
            Problem(
                subject=recorded.path.name,
                message=recorded.problem,
                fix="envguard freeze -o FILE in a good environment",
            ),
        )
    return [
        Problem(
            subject=dist.name,
            message=f"{dist.name} {dist.version} is another build than the recorded one: its files' hashes differ",
            expected=known[1],
            observed=dist.fingerprint,
            repair=reinstall(case, dist.name),
        )
        for dist in case.observation.distributions
        if dist.fingerprint is not None
        and (known := recorded.distributions.get(dist.name)) is not None
        and known[0] == dist.version
        and known[1] not in (None, dist.fingerprint)
    ]


def _describe(build: TorchRule | TorchBuild) -> str:
    parts = [build.version]
    if build.cuda:
        parts.append(f"cuda {build.cuda}")
    if build.git_version:
        parts.append(f"git {build.git_version[:12]}")
    return " ".join(parts)


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="BLD001",
        summary="torch is a build that the profile accepts: label, CUDA release and commit",
        why="Builds for different CUDA releases share one metadata version, so that uv sync --check, pip check and "
        "hash checking all pass on the wrong one. torch/version.py tells them apart.",
        fix="reinstall torch; a build that the package index does not serve needs the profile's own lock",
        run=_torch_build,
    ),
    Check(
        id="BLD002",
        summary="every distribution is the build that was recorded",
        why="One version number can stand for several builds: another CUDA label, another index, a local compilation. "
        "The fingerprint of RECORD's hashes is the same for a wheel and every installation of it, and differs between "
        "builds.",
        fix="reinstall the distribution from where the recorded one came, or record anew with envguard freeze -o FILE",
        run=_recorded,
        tier="standard",
    ),
)
