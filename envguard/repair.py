"""The commands that repair all findings that uv can repair.

In: the repairs of the findings and where uv has to work. Out: ``Step``s, or one line for a shell. It runs nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from envguard.findings import NO_REPAIR, Repair
from envguard.frozen import Frozen


class Workplace(Frozen):
    """Where a repair is done."""

    uv: str
    """The uv executable, as a shell finds it."""
    directory: Path
    """The project whose lock is synced."""
    venv: Path
    """The environment that was judged."""


class Step(Frozen):
    """One command of a repair."""

    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()
    """Variables that it needs besides those of the shell."""

    def __str__(self) -> str:
        """As one types it into a shell."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.environ]
        return " ".join([*assignments, shlex.join(self.argv)])


def repair_command(repairs: Iterable[Repair], workplace: Workplace) -> str | None:
    """``repair_steps`` as one line for a shell; None where there is nothing to do."""
    return " && ".join(map(str, repair_steps(repairs, workplace))) or None


def repair_steps(repairs: Iterable[Repair], workplace: Workplace) -> tuple[Step, ...]:
    """Merge ``repairs`` into the fewest commands for ``workplace``; () where uv can do nothing."""
    merged = _merge(repairs)
    steps = [Step(argv=("rm", "-r", *merged.delete))] if merged.delete else []
    if merged.clean:
        steps.append(Step(argv=(workplace.uv, "cache", "clean", *merged.clean)))
    if merged.lock:
        steps.append(Step(argv=(workplace.uv, "lock", *_place(workplace))))
    if merged != NO_REPAIR:
        steps.append(_sync(workplace, merged.reinstall, merged.python))
    return tuple(steps)


def _sync(workplace: Workplace, reinstall: Iterable[str], python: str | None) -> Step:
    argv = [workplace.uv, "sync", "--locked", *_place(workplace)]
    for name in reinstall:
        argv += ["--reinstall-package", name]
    if python is not None:
        argv += ["--python", python]
    current = workplace.directory / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")
    is_default = current.resolve() == workplace.venv.resolve()
    environ = () if is_default else (("UV_PROJECT_ENVIRONMENT", str(workplace.venv)),)
    return Step(argv=tuple(argv), environ=environ)


def _place(workplace: Workplace) -> list[str]:
    here = Path.cwd()
    is_here = workplace.directory == here or workplace.directory in here.parents
    return [] if is_here else ["--project", str(workplace.directory)]


def _merge(repairs: Iterable[Repair]) -> Repair:
    each = list(repairs)
    return Repair(
        lock=any(repair.lock for repair in each),
        sync=any(repair.sync for repair in each),
        reinstall=tuple(sorted({name for repair in each for name in repair.reinstall})),
        clean=tuple(sorted({name for repair in each for name in repair.clean})),
        delete=tuple(sorted({path for repair in each for path in repair.delete})),
        python=next((repair.python for repair in each if repair.python), None),
    )
