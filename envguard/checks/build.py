"""BLD: which build of a version is installed. In: an ``Inspection``. Out: problems. torch is never imported."""

from __future__ import annotations

from collections.abc import Iterable

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


def _accepts(rule: TorchRule, build: TorchBuild) -> bool:
    return (
        same_version(rule.version, build.version)
        and rule.cuda in (None, build.cuda)
        and rule.git_version in (None, build.git_version)
    )


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
)
