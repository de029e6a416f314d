"""uv's verdict on a lock: does it still follow from pyproject.toml?

In: the project's directory. Out: a ``LockCheck``. It runs ``uv lock --check`` (70 to 210 ms), which needs no index
while the lock is valid; it never changes the lock and never downloads a Python.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from envguard.frozen import Frozen

TIMEOUT = 120.0
"""Seconds; a stale lock makes uv resolve, and an index out of reach makes it retry."""


class LockCheck(Frozen):
    """What uv answered."""

    is_fresh: bool | None
    """None where uv could not tell."""
    detail: str
    """Why it is not fresh or not known; "" where it is fresh."""


def ask_uv(project: Path, uv: str | None, site_packages: Path) -> Callable[[], LockCheck]:
    """Start asking uv whether the lock in ``project`` is fresh; call what is returned for the answer.

    ``uv`` is the executable or None where there is none. uv works in a process of its own meanwhile.
    """
    if uv is None:
        unknown = "uv is not on PATH, so whether the lock is stale is unknown: install uv"
        return lambda: LockCheck(is_fresh=None, detail=unknown)
    if waits := _irregular_startup(site_packages):
        hangs = f"uv was not asked, since every Python of the environment reads {waits}, which is no regular file"
        return lambda: LockCheck(is_fresh=None, detail=f"{hangs}: delete it")
    command = [uv, "lock", "--check", "--project", str(project), "--color", "never"]
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        refused = f"uv lock --check cannot run: {error}"
        return lambda: LockCheck(is_fresh=None, detail=refused)
    return lambda: _collect(process)


def _irregular_startup(site_packages: Path) -> str | None:
    """A ``.pth`` that is a pipe or a device: uv starts the environment's Python, which would wait for it for ever."""
    try:
        with os.scandir(site_packages) as entries:
            found = (entry.path for entry in entries if entry.name.endswith(".pth") and _is_special(entry))
            return next(found, None)
    except OSError:
        return None  # the observation tells what is wrong with the directory


def _is_special(entry: os.DirEntry[str]) -> bool:
    return os.path.exists(entry.path) and not entry.is_file() and not entry.is_dir()


def _collect(process: subprocess.Popen[str]) -> LockCheck:
    try:
        _, talk = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return LockCheck(is_fresh=None, detail=f"uv lock --check has not answered for {TIMEOUT:.0f} s")
    lines = [line.strip() for line in talk.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    detail = (errors or lines or ["it says nothing"])[0]
    if process.returncode == 0:
        return LockCheck(is_fresh=True, detail="")
    if process.returncode == 1:
        return LockCheck(is_fresh=False, detail=detail)
    return LockCheck(is_fresh=None, detail=f"uv lock --check fails with exit {process.returncode}: {detail}")
