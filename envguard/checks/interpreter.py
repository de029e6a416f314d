"""ENV: the interpreter itself. In: an ``Inspection``. Out: problems. Nothing here looks at packages."""

from __future__ import annotations

from collections.abc import Iterable

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
)
