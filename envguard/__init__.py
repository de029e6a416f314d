"""envguard: knows what a Python environment should hold, what it does hold, and the command that repairs it.

In: a project with an ``envguard.toml`` and a ``uv.lock``. Out: ``check_project`` returns a ``Report``, ``require``
raises ``DriftError``, ``freeze`` describes what is installed. Each is loaded when it is first asked for, so that
``import envguard`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envguard.errors import DriftError
    from envguard.guard import check_project, enforce, freeze, require
    from envguard.report import Report

__all__ = ["DriftError", "Report", "check_project", "enforce", "freeze", "require"]

_HOME = {
    "DriftError": "envguard.errors",
    "Report": "envguard.report",
    "check_project": "envguard.guard",
    "enforce": "envguard.guard",
    "freeze": "envguard.guard",
    "require": "envguard.guard",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'envguard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
