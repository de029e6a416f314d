"""The guard: observe, look up what is expected, run every check, report.

In: a project directory, a profile's name and an interpreter, each with a default. Out: a ``Report``; ``require``
raises instead where the environment has drifted. It imports no torch, changes nothing and repairs nothing.
"""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from typing import Any

from envguard.base import read_base
from envguard.envjson import freeze_document
from envguard.errors import CheckCrashed, DriftError, LockError
from envguard.expect import Expected, expect
from envguard.findings import INCLUDED, Tier, run_checks
from envguard.inspection import Inspection
from envguard.lock import Lock, load_lock
from envguard.observe import Observation, observe
from envguard.policy import load_policy
from envguard.probes.uv_lock import check_lock
from envguard.project import find_project
from envguard.registry import CHECKS, FAMILIES
from envguard.repair import Workplace
from envguard.report import Report


def check_project(
    project: Path | None = None,
    profile: str = "auto",
    python: Path | None = None,
    *,
    tier: Tier = "fast",
    base: str | None = None,
) -> Report:
    """Judge an environment by its project's policy and lock.

    ``project`` is searched from the current directory upwards where it is None; ``profile`` ``auto`` chooses by the
    presence of an NVIDIA driver; ``python`` is the running interpreter where it is None. The ``standard`` tier also
    asks uv whether the lock is stale. ``base`` is a git revision, or a lock file or project directory, that the lock is
    compared with (LCK003).

    Raises:
        UsageError: the project, the profile or the interpreter is not there, or the policy is wrong.
        CheckCrashed: the environment cannot be listed, or ``packaging`` cannot be imported.
    """
    case = inspect(project, profile, python, tier=tier, base=base)
    findings = run_checks([check for check in CHECKS if check.tier in INCLUDED[tier]], case)
    interpreter = case.observation.interpreter
    return Report(
        profile=case.profile.name,
        project=case.policy.path.parent,
        env_id=freeze_document(case.observation)["env_id"],
        judged=_judged(case.observation),
        findings=tuple(finding for finding in findings if finding.status != "skip"),
        skipped=tuple(finding for finding in findings if finding.status == "skip"),
        titles=FAMILIES,
        workplace=None
        if not case.lock_exists and case.profile.unlocked
        else Workplace(
            uv=find_uv(interpreter.prefix) or "uv",
            directory=case.lock.parent,
            venv=interpreter.prefix,
        ),
    )


def inspect(
    project: Path | None, profile: str, python: Path | None, *, tier: Tier, base: str | None = None
) -> Inspection:
    """Read everything that the checks judge; the errors are those of ``check_project``."""
    home = find_project(project)
    policy = load_policy(home.policy)
    observation = observe(python)
    chosen = policy.profile(profile, has_driver=observation.driver is not None)
    lock = home.root / chosen.lock
    locked: Lock | None = None
    expected: Expected | None = None
    lock_problem: str | None = None
    try:
        locked = load_lock(lock)
        expected = expect(locked, observation.interpreter.marker_environment())
    except LockError as error:
        lock_problem = str(error)
    asks_uv = tier != "fast" and expected is not None
    return Inspection(
        observation=observation,
        policy=policy,
        profile=chosen,
        lock=lock,
        lock_exists=lock.is_file(),
        locked=locked,
        expected=expected,
        lock_problem=lock_problem,
        project_venv=home.venv,
        python_was_named=python is not None,
        lock_check=check_lock(lock.parent, find_uv(observation.interpreter.prefix)) if asks_uv else None,
        base=None if base is None else read_base(base, home.policy, lock),
        today=datetime.datetime.now(datetime.UTC).date(),
    )


def require(project: Path | None = None, profile: str = "auto", python: Path | None = None) -> Report:
    """``check_project`` in the fast tier, for the start of a run: return the report of a sound environment.

    Raises:
        DriftError: something fails; one line a finding, and the repair.
        CheckCrashed: a check could not be run, or as ``check_project`` says.
        UsageError: as ``check_project`` says.
    """
    return enforce(check_project(project, profile, python))


def enforce(report: Report) -> Report:
    """Return the report of a sound environment.

    Raises:
        DriftError: something fails; one line a finding, and the repair.
        CheckCrashed: a check could not be run.
    """
    if report.exit_code == 0:
        return report
    lines = [f"{finding.id} {finding.message}" for finding in report.findings if finding.status in ("fail", "error")]
    if report.repair:
        lines.append(f"repair it with: {report.repair}")
    kind = DriftError if report.status == "fail" else CheckCrashed
    raise kind("\n".join(lines))


def freeze(python: Path | None = None) -> dict[str, Any]:
    """The observed environment as a document for ``env.json``, GPUs included (see ``envjson.py``).

    It initialises CUDA in this process: call it where nothing forks later. Raises as ``observe`` does.
    """
    return freeze_document(observe(python, with_gpus=True))


def find_uv(prefix: Path) -> str | None:
    """The uv to call: uv from PATH, else the one inside the judged environment."""
    inside = prefix / "bin" / "uv"
    return "uv" if shutil.which("uv") else str(inside) if inside.is_file() else None


def _judged(observation: Observation) -> str:
    torch = f"torch {observation.torch.version}" if observation.torch else "no torch"
    driver = f"driver {observation.driver}" if observation.driver else "no NVIDIA driver"
    count = len(observation.distributions)
    return f"Python {observation.interpreter.version}, {count} distributions, {torch}, {driver}"
