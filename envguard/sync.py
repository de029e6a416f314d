"""What makes the project's environment what its profile says: the uv commands of ``envguard sync``.

In: a project, a profile, a Python version or none. Out: a ``Plan``; ``apply`` runs it. It judges the environment that
uv would write to (``.venv`` or ``UV_PROJECT_ENVIRONMENT``), whatever interpreter runs envguard. It never changes an
environment itself: uv does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from envguard.errors import CheckCrashed, ProbeError, ToolError, UsageError
from envguard.findings import Repair
from envguard.frozen import Frozen
from envguard.guard import check_project, find_uv
from envguard.pkg import satisfies
from envguard.policy import load_policy
from envguard.probes import gpu
from envguard.probes.interpreter import find_interpreter
from envguard.project import find_project
from envguard.repair import Step, Workplace, repair_steps
from envguard.report import Report


class Plan(Frozen):
    """What there is to do."""

    project: Path
    profile: str
    venv: Path
    steps: tuple[Step, ...]
    """() where there is nothing that uv could do."""
    report: Report | None
    """The judgement that the steps follow from; None where there is no environment yet."""


def plan_sync(project: Path | None = None, profile: str = "auto", python: str | None = None) -> Plan:
    """Find the commands; ``python`` is a version that the environment shall have, as ``uv sync --python`` takes it.

    Raises:
        UsageError: project, policy or profile are not there or wrong, or the profile has no lock to sync with.
        CheckCrashed: the environment cannot be listed.
    """
    home = find_project(project)
    chosen = load_policy(home.policy).profile(profile, has_driver=_has_driver())
    lock = home.root / chosen.lock
    if not lock.is_file():
        reason = chosen.unlocked or f"run uv lock in {lock.parent}"
        raise UsageError(f"profile {chosen.name} has no lock to sync with ({lock} does not exist): {reason}")
    where = Workplace(uv=find_uv(home.venv) or "uv", directory=lock.parent, venv=home.venv)
    wanted = [Repair(sync=True, python=python)]
    if not (home.venv / "pyvenv.cfg").is_file():
        steps = repair_steps(wanted, where)
        return Plan(project=home.root, profile=chosen.name, venv=home.venv, steps=steps, report=None)
    report = check_project(home.root, chosen.name, home.venv, tier="standard")
    repairs = [finding.repair for finding in report.findings]
    if python is not None and not _is_python(find_interpreter(home.venv).version, python):
        repairs = wanted + repairs
    return Plan(
        project=home.root,
        profile=chosen.name,
        venv=home.venv,
        steps=repair_steps(repairs, where),
        report=report,
    )


def apply(plan: Plan, say: Callable[[str], None]) -> Report:
    """Run the steps, uv's own output on stderr, and judge again.

    Raises:
        ToolError: a command fails; the rest is not run.
        CheckCrashed: uv is not there.
    """
    for step in plan.steps:
        say(f"+ {step}")
        try:
            done = subprocess.run(step.argv, env={**os.environ, **dict(step.environ)}, stdout=sys.stderr, check=False)
        except OSError as error:
            raise CheckCrashed(f"{step.argv[0]} cannot be run ({error.strerror}): install uv") from error
        if done.returncode != 0:
            raise ToolError(f"this ended with exit {done.returncode}, see above: {step}")
    return check_project(plan.project, plan.profile, plan.venv, tier="standard")


def _is_python(installed: str, wanted: str) -> bool:
    """Whether an environment's version is what ``uv sync --python`` would be asked for: ``3.12`` or ``>=3.12``."""
    return satisfies(installed, wanted if wanted[:1] in "<>=!~" else f"=={wanted}.*")


def _has_driver() -> bool:
    try:
        return gpu.driver_version() is not None
    except ProbeError:
        return False
