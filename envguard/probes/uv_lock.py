"""uv's verdict on a lock: does it still follow from pyproject.toml?

In: the project's directory. Out: a ``LockCheck``. It runs ``uv lock --check`` (70 to 210 ms), which needs no index
while the lock is valid; it never changes the lock and never downloads a Python.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 120.0
"""Seconds; a stale lock makes uv resolve, and an index out of reach makes it retry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockCheck:
    """What uv answered."""

    is_fresh: bool | None
    """None where uv could not tell."""
    detail: str
    """Why it is not fresh or not known; "" where it is fresh."""


def check_lock(project: Path, uv: str | None) -> LockCheck:
    """Ask uv whether the lock in ``project`` is fresh; ``uv`` is the executable or None where there is none."""
    if uv is None:
        return LockCheck(is_fresh=None, detail="uv is not on PATH, so whether the lock is stale is unknown: install uv")
    command = [uv, "lock", "--check", "--project", str(project), "--color", "never"]
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return LockCheck(is_fresh=None, detail=f"uv lock --check cannot run: {error}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    detail = (errors or lines or ["it says nothing"])[0]
    if done.returncode == 0:
        return LockCheck(is_fresh=True, detail="")
    if done.returncode == 1:
        return LockCheck(is_fresh=False, detail=detail)
    return LockCheck(is_fresh=None, detail=f"uv lock --check fails with exit {done.returncode}: {detail}")
