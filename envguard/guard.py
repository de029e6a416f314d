"""The guard: observe, look up what is expected, run every check, report.

In: a project directory, a profile's name and an interpreter, each with a default. Out: a ``Report``; ``require``
raises instead where the environment has drifted. It imports no torch, changes nothing and repairs nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envguard.checks import policies
from envguard.envjson import freeze_document
from envguard.errors import CheckCrashed, DriftError, LockError, PolicyError
from envguard.expect import Expected
from envguard.findings import NO_REPAIR, Check, Finding, Tier, run_checks
from envguard.frozen import replace
from envguard.inspection import Inspection
from envguard.lockcache import load_expected
from envguard.observe import Observation, look_closer, observe
from envguard.policy import DEFAULT_WATCHED, Policy, load_policy
from envguard.probes.interpreter import default_python
from envguard.probes.programs import is_command
from envguard.project import find_project
from envguard.registry import FAMILIES, choose_checks
from envguard.repair import Workplace
from envguard.report import Places, Report
from envguard.statcache import StatCache
from envguard.surroundings import look_around
from envguard.waivers import waive

if TYPE_CHECKING:
    from envguard.base import Base
    from envguard.probes.hashing import Progress
    from envguard.probes.uv_lock import LockCheck


def check_project(
    project: Path | None = None,
    profile: str = "auto",
    python: Path | None = None,
    *,
    tier: Tier = "fast",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict: bool = False,
    base: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Judge an environment by its project's policy and lock.

    ``project`` is searched from the current directory upwards where it is None; ``profile`` ``auto`` chooses by the
    presence of an NVIDIA driver; ``python`` is the running interpreter where it is None. The ``standard`` tier also
    asks uv whether the lock is stale, and compares the installed files with RECORD; ``deep`` hashes all of them, and
    tells ``progress`` how far it is. ``select`` and ``ignore`` name checks or families (``PKG``); ``strict`` makes
    warnings count. ``base`` is a git revision, or a lock file or project directory, that the lock is compared with
    (LCK003).

    Raises:
        UsageError: the project, the profile, the interpreter or a check is not there, or the policy is wrong.
        CheckCrashed: the environment cannot be listed, or ``packaging`` cannot be imported.
    """
    checks = choose_checks(tier, select, ignore)
    case = inspect(project, profile, python, tier=tier, base=base, progress=progress)
    findings = judge(checks, case)
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
        places=Places(policy=case.policy, profile=case.profile.name, lock=case.lock),
        passed=tuple(check.id for check in checks if check.id not in {finding.id for finding in findings}),
        strict=strict,
    )


def judge(checks: Sequence[Check[Inspection]], case: Inspection) -> tuple[Finding, ...]:
    """Run ``checks``, apply the policy's waivers, then run the checks of the policy itself on what came of it."""
    ordinary = [check for check in checks if not policies.is_about_policy(check.id)]
    found = waive(run_checks(ordinary, case), case.policy.waivers, case.today)
    unjudged = {finding.id for finding in found if finding.status in ("skip", "error")}
    judged = frozenset(check.id for check in ordinary) - unjudged
    last = [check for check in checks if policies.is_about_policy(check.id)]
    return found + run_checks(last, replace(case, found=found, judged=judged))


def inspect(
    project: Path | None,
    profile: str,
    python: Path | None,
    *,
    tier: Tier,
    base: str | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Read everything that the checks judge; the errors are those of ``check_project``."""
    home = find_project(project)
    today = datetime.datetime.now(datetime.UTC).date()
    policy = load_policy(home.policy, today)
    observation = observe(python or default_python(home.venv), watched=policy.watched)
    chosen = policy.profile(profile, has_driver=observation.driver is not None)
    lock = home.root / chosen.lock
    expected: Expected | None = None
    lock_problem: str | None = None
    try:
        expected = load_expected(lock, observation.interpreter.marker_environment(), StatCache.default())
    except LockError as error:
        lock_problem = str(error)
    lock_check: LockCheck | None = None
    if tier != "fast":
        from envguard.beside import beside
        from envguard.probes.uv_lock import ask_uv

        uv = find_uv(observation.interpreter.prefix)
        site_packages = observation.interpreter.site_packages
        # uv, git and the loader's cache answer while we read.
        answer = ask_uv(lock.parent, uv, site_packages) if expected is not None else None
        around = beside(partial(look_around, policy, chosen, observation, tier))
        observation = look_closer(observation, watched=policy.watched, everything=tier == "deep", progress=progress)
        lock_check = answer() if answer else None
    else:
        around = partial(look_around, policy, chosen, observation, tier)
    return Inspection(
        observation=observation,
        policy=policy,
        profile=chosen,
        lock=lock,
        lock_exists=lock.is_file(),
        expected=expected,
        lock_problem=lock_problem,
        project_venv=home.venv,
        python_was_named=python is not None,
        lock_check=lock_check,
        base=None if base is None else _read_base(base, home.policy, lock),
        today=today,
        around=around(),
    )


def require(
    profile: str = "auto", *, project: Path | None = None, python: Path | None = None, tier: Tier = "fast"
) -> Report:
    """``check_project`` for the start of a run: return the report of a sound environment.

    Raises:
        DriftError: something fails; one line a finding, and the repair.
        CheckCrashed: a check could not be run, or as ``check_project`` says.
        UsageError: as ``check_project`` says.
    """
    return enforce(check_project(project, profile, python, tier=tier))


def enforce(report: Report) -> Report:
    """Return the report of a sound environment.

    Raises:
        DriftError: something fails; one line a finding, and the repair.
        CheckCrashed: a check could not be run.
    """
    if report.exit_code == 0:
        return report
    lines = [
        f"{finding.id} {finding.message}" + (f"; {finding.fix}" if finding.repair == NO_REPAIR else "")
        for finding in report.findings
        if finding.status in ("fail", "error")
    ]
    if report.repair:
        lines.append(f"repair it with: {report.repair}")
    kind = DriftError if report.status == "fail" else CheckCrashed
    raise kind("\n".join(lines))


def freeze(python: Path | None = None, project: Path | None = None) -> dict[str, Any]:
    """The observed environment as a document for ``env.json``, GPUs included (see ``envjson.py``).

    The code that the policy of ``project`` (searched upwards where it is None) names as ``source`` is recorded too;
    outside any project there is none. It initialises CUDA in this process: call it where nothing forks later.

    Raises:
        UsageError: ``python`` is no interpreter, ``project`` is none, or its policy is wrong.
        ProbeError: the environment cannot be listed, a file of the code cannot be read, or the driver refuses.
    """
    policy = _policy_around(project)
    if python is None and policy is not None:
        python = default_python(find_project(policy.path.parent).venv)
    seen = look_closer(observe(python, with_gpus=True), watched=policy.watched if policy else DEFAULT_WATCHED)
    if policy is None or not policy.source:
        return freeze_document(seen)
    from envguard.owncode import describe_code

    return freeze_document(seen, describe_code(policy.path.parent, policy.source))


def _policy_around(project: Path | None) -> Policy | None:
    """The policy of ``project``; None where none was named and there is none here or above."""
    try:
        home = find_project(project)
    except PolicyError:
        if project is not None:
            raise
        return None
    return load_policy(home.policy)


def _read_base(name: str, policy: Path, lock: Path) -> Base:
    from envguard.base import read_base

    return read_base(name, policy, lock)


def find_uv(prefix: Path) -> str | None:
    """The uv to call: uv from PATH, else the one inside the judged environment."""
    inside = prefix / "bin" / "uv"
    return "uv" if is_command("uv") else str(inside) if inside.is_file() else None


def _judged(observation: Observation) -> str:
    torch = f"torch {observation.torch.version}" if observation.torch else "no torch"
    driver = f"driver {observation.driver}" if observation.driver else "no NVIDIA driver"
    count = len(observation.distributions)
    return f"Python {observation.interpreter.version}, {count} distributions, {torch}, {driver}"
