"""ENV: the interpreter itself and what else a shell puts around it. In: an ``Inspection``. Out: problems.

Nothing here looks at packages. Rules of the policy about variables are RUN001's.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.pkg import satisfies


def _project_venv(case: Inspection) -> Iterable[Problem] | Skip:
    interpreter = case.observation.interpreter
    if interpreter.prefix.resolve() == case.project_venv.resolve():
        return ()
    if case.python_was_named:
        return Skip(reason="another interpreter than the project's was named with --python")
    problem = Problem(
        subject=str(interpreter.executable),
        message=f"this Python lives in {interpreter.prefix}, and uv sync would repair {case.project_venv}",
        expected=str(case.project_venv),
        observed=str(interpreter.prefix),
        severity="warn" if interpreter.is_venv else "fail",
    )
    return (problem,)


def _python_range(case: Inspection) -> Iterable[Problem]:
    version = case.observation.interpreter.version
    if not satisfies(version, case.profile.python):
        yield Problem(
            subject="python",
            message=f"Python {version} is outside what profile {case.profile.name} accepts ({case.profile.python})",
            expected=case.profile.python,
            observed=version,
            repair=Repair(sync=True, python=case.profile.python),
        )


def _shared_site(case: Inspection) -> Iterable[Problem] | Skip:
    interpreter, names = case.observation.interpreter, case.observation.user_site_names
    problems: list[Problem] = []
    if interpreter.system_site:
        problems.append(
            Problem(
                subject="pyvenv.cfg",
                message=f"{interpreter.prefix} also imports the packages of the Python that it was made from",
                expected="include-system-site-packages = false",
                observed="include-system-site-packages = true",
                fix=f"set include-system-site-packages = false in {interpreter.prefix / 'pyvenv.cfg'}",
            )
        )
    if names:
        problems.append(
            Problem(
                subject="user site",
                message=f"{len(names)} entries of {interpreter.user_site} can be imported beside the environment's",
                observed=str(interpreter.user_site),
                fix="export PYTHONNOUSERSITE=1",
            )
        )
    if not problems and interpreter.user_site is not None:
        return Skip(reason=f"the user's own site-packages are switched on, and nothing is in {interpreter.user_site}")
    return problems


REDIRECTING = {
    "PYTHONPATH": "its directories come before the environment's packages",
    "PYTHONHOME": "it moves the standard library",
    "PYTHONPYCACHEPREFIX": "bytecode comes from a directory that no package manager knows",
}


def _redirected(case: Inspection) -> Iterable[Problem]:
    for name, value in case.observation.variables:
        if name in REDIRECTING and value and not _is_ruled(case, name):
            yield Problem(
                subject=name,
                message=f"{name} is set to {value!r}: {REDIRECTING[name]}",
                observed=value,
                fix=f"unset {name}",
            )


def _is_ruled(case: Inspection, name: str) -> bool:
    """Whether the profile itself says what ``name`` may be."""
    globs = (*case.profile.allow_variables, *case.profile.deny_variables)
    return any(fnmatchcase(name, glob) for glob in globs) or name in dict(case.profile.require_variables)


def _conda(case: Inspection) -> Iterable[Problem]:
    prefix = case.observation.interpreter.prefix
    active = dict(case.observation.variables).get("CONDA_PREFIX")
    if case.observation.is_conda:
        yield Problem(
            subject="conda-meta",
            message=f"{prefix} is a conda environment, and what conda installs is not in any lock of uv",
            observed=str(prefix / "conda-meta"),
            fix="make an environment with uv: uv venv, then uv sync --locked",
        )
    elif active and Path(active).resolve() != prefix.resolve():
        yield Problem(
            subject="CONDA_PREFIX",
            message=f"the conda environment {active} is active over {prefix}",
            observed=active,
            fix="conda deactivate (until no environment is active)",
        )


def _launchers(case: Inspection) -> Iterable[Problem] | Skip:
    home = case.observation.interpreter.prefix / "bin"
    has_torch = any(dist.name == "torch" for dist in case.observation.distributions)
    judged = [
        (name, place) for name, place in case.observation.launchers if has_torch or name in case.observation.programs
    ]
    if not judged:
        return Skip(reason="PATH finds no launcher of workers" if has_torch else "the environment launches no workers")
    return [
        Problem(
            subject=name,
            message=f"{name} on PATH is {place}, which starts its workers with another Python than {home / 'python'}",
            expected=str(home / name),
            observed=place,
            fix=_way_to_launch(name, home),
        )
        for name, place in judged
        if home.resolve() not in (Path(place).parent.resolve(), Path(place).resolve().parent)
    ]


def _way_to_launch(name: str, home: Path) -> str:
    if name == "torchrun":
        return f"{home / 'python'} -m torch.distributed.run, or put {home} first on PATH (activate the environment)"
    return f"put {home} first on PATH (activate the environment)"


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="ENV001",
        summary="the running Python is that of the project's environment",
        why="In another environment the packages are others than those that uv sync installs and repairs; outside any "
        "environment they are shared with the whole system. Another virtual environment is a warning.",
        fix="run it with uv run, activate the project's environment, or set UV_PROJECT_ENVIRONMENT to the one you use",
        run=_project_venv,
    ),
    Check(
        id="ENV002",
        summary="the Python version is one that the profile accepts",
        why="Wheels, and so every build below, are chosen by the Python version; a lock holds other versions for it.",
        fix="recreate the environment with an accepted Python",
        run=_python_range,
    ),
    Check(
        id="ENV003",
        summary="no packages of the user or of the system are importable beside the environment's",
        why="What lies in the user's own site-packages, or in the system's, is in no lock and fills in silently.",
        fix="export PYTHONNOUSERSITE=1, and recreate an environment that was made with --system-site-packages",
        run=_shared_site,
        example="3 entries of ~/.local/lib/python3.12/site-packages can be imported beside the environment's",
    ),
    Check(
        id="ENV004",
        summary="PYTHONPATH, PYTHONHOME and PYTHONPYCACHEPREFIX are not set",
        why="They change what is imported, in every process that inherits them. That a watched package really is "
        "shadowed is SHD001's failure; what the profile itself denies or requires is RUN001's.",
        fix="unset the variable, or name it under allow in the profile's env",
        run=_redirected,
        severity="warn",
        example="PYTHONPATH is set to '/opt/tools': its directories come before the environment's packages",
    ),
    Check(
        id="ENV005",
        summary="no conda environment lies over or under the environment",
        why="conda puts its own libraries and programs first, two OpenMP runtimes in one process among them.",
        fix="conda deactivate",
        run=_conda,
        severity="warn",
        example="the conda environment /opt/conda is active over /home/me/project/.venv",
    ),
    Check(
        id="ENV006",
        summary="torchrun, accelerate and deepspeed on PATH are those of the environment",
        why="A launcher starts its workers with the Python that it was installed for: uv run torchrun finds the one in "
        "~/.local/bin where the environment has none, and every worker then runs outside the environment.",
        fix="start it as python -m torch.distributed.run, or activate the environment",
        run=_launchers,
        example="torchrun on PATH is ~/.local/bin/torchrun, which starts its workers with another Python",
    ),
)
