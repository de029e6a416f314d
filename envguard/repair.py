"""One command that repairs all findings that uv can repair.

In: the repairs of the findings and where uv has to work. Out: a shell command line, or None where uv can do nothing.
It runs nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envguard.findings import NO_REPAIR, Repair


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """Where a repair is done."""

    uv: str
    """The uv executable, as a shell finds it."""
    directory: Path
    """The project whose lock is synced."""
    venv: Path
    """The environment that was judged."""


def repair_command(repairs: Iterable[Repair], workplace: Workplace) -> str | None:
    """Merge ``repairs`` into one command for ``workplace``."""
    merged = _merge(repairs)
    if merged == NO_REPAIR:
        return None
    uv, directory, venv = workplace.uv, workplace.directory, workplace.venv
    here = Path.cwd()
    place = [] if directory == here or directory in here.parents else ["--project", str(directory)]
    sync = [uv, "sync", "--locked", *place]
    for name in merged.reinstall:
        sync += ["--reinstall-package", name]
    if merged.python is not None:
        sync += ["--python", merged.python]
    command = shlex.join(sync)
    current = directory / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")
    if current.resolve() != venv.resolve():
        command = f"UV_PROJECT_ENVIRONMENT={shlex.quote(str(venv))} {command}"
    if merged.lock:
        command = f"{shlex.join([uv, 'lock', *place])} && {command}"
    if merged.clean:
        command = f"{shlex.join([uv, 'cache', 'clean', *merged.clean])} && {command}"
    if merged.delete:
        command = f"{shlex.join(['rm', '-r', *merged.delete])} && {command}"
    return command


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
