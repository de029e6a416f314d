"""Every check of an environment, in the order of the report. ``envguard list`` and ``explain`` are made from it.

In: the families. Out: ``CHECKS`` and look-ups. Adding a check is adding it to its family's ``CHECKS``; adding a
family is a line here and its title.
"""

from __future__ import annotations

from envguard.checks import build, cuda, integrity, interpreter, lock, packages, run, shadow, source, strays
from envguard.errors import UsageError
from envguard.findings import Check
from envguard.inspection import Inspection

CHECKS: tuple[Check[Inspection], ...] = (
    *interpreter.CHECKS,
    *lock.CHECKS,
    *packages.CHECKS,
    *build.CHECKS,
    *cuda.CHECKS,
    *integrity.CHECKS,
    *strays.CHECKS,
    *shadow.CHECKS,
    *source.CHECKS,
    *run.CHECKS,
)

FAMILIES = {
    "ENV": "Interpreter",
    "LCK": "Lock",
    "PKG": "Packages",
    "BLD": "Builds",
    "CUD": "CUDA",
    "INT": "Installed files",
    "SHD": "Imports",
    "SRC": "Source",
    "RUN": "Numerics",
    "POL": "Policy",
}
"""Titles of the families, by the letters of their ids."""


def find_check(check_id: str) -> Check[Inspection]:
    """The check called ``check_id``, in any case.

    Raises:
        UsageError: there is none.
    """
    for check in CHECKS:
        if check.id == check_id.upper():
            return check
    import difflib

    ids = [check.id for check in CHECKS]
    near = difflib.get_close_matches(check_id.upper(), ids, n=1, cutoff=0.0)
    raise UsageError(f"no check is called {check_id!r}; nearest: {near[0]}; all of them: envguard list")
