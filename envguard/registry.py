"""Every check of an environment, in the order of the report. ``envguard list`` and ``explain`` are made from it.

In: the families. Out: ``CHECKS`` and look-ups. Adding a check is adding it to its family's ``CHECKS``; adding a
family is a line here and its title.
"""

from __future__ import annotations

from collections.abc import Sequence

from envguard.checks import (
    build,
    cuda,
    integrity,
    interpreter,
    lock,
    origins,
    packages,
    policies,
    requirements,
    run,
    shadow,
    source,
    strays,
    system,
)
from envguard.errors import UsageError
from envguard.findings import INCLUDED, Check, Tier
from envguard.inspection import Inspection

CHECKS: tuple[Check[Inspection], ...] = (
    *interpreter.CHECKS,
    *lock.CHECKS,
    *packages.CHECKS,
    *requirements.CHECKS,
    *origins.CHECKS,
    *build.CHECKS,
    *cuda.CHECKS,
    *system.CHECKS,
    *integrity.CHECKS,
    *strays.CHECKS,
    *shadow.CHECKS,
    *source.CHECKS,
    *run.CHECKS,
    *policies.CHECKS,
)

WAIVABLE = tuple(check.id for check in CHECKS if not policies.is_about_policy(check.id))
"""Ids of the checks whose findings a waiver may cover: all but those of the policy itself."""

FAMILIES = {
    "ENV": "Interpreter",
    "LCK": "Lock",
    "PKG": "Packages",
    "BLD": "Builds",
    "CUD": "CUDA",
    "INT": "Installed files",
    "SHD": "Imports",
    "SRC": "Source",
    "RUN": "Environment variables",
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
    raise UsageError(f"no check is called {check_id!r}; {_nearest(check_id)}all of them: envguard list")


def choose_checks(tier: Tier, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check[Inspection], ...]:
    """The checks of ``tier`` that ``select`` names (all, where it is empty) and ``ignore`` does not.

    A name is an id or its beginning, such as ``INT``, in any case.

    Raises:
        UsageError: a name fits no check, or only checks that ``tier`` does not run.
    """
    chosen = [check for check in CHECKS if check.tier in INCLUDED[tier]]
    for name in (*select, *ignore):
        fitting = [check for check in CHECKS if _fits(check, name)]
        if not name or not fitting:
            known = f"{_nearest(name)}families: {', '.join(FAMILIES)}"
            raise UsageError(f"no check or family is called {name!r}; {known}; all of them: envguard list")
        if name in select and not any(check in chosen for check in fitting):
            raise UsageError(f"--select {name}: the {tier} tier does not run it; {_WAY[fitting[0].tier]}")
    if select:
        chosen = [check for check in chosen if any(_fits(check, name) for name in select)]
    return tuple(check for check in chosen if not any(_fits(check, name) for name in ignore))


_WAY: dict[Tier, str] = {
    "fast": "leave out --gpu or --deep",
    "standard": "use envguard check",
    "deep": "add --deep",
    "gpu": "add --gpu",
}


def _fits(check: Check[Inspection], name: str) -> bool:
    return check.id.startswith(name.upper())


def _nearest(name: str) -> str:
    """A hint in words; "" where nothing is near."""
    import difflib

    near = difflib.get_close_matches(name.upper(), [check.id for check in CHECKS], n=1, cutoff=0.6)
    return f"nearest: {near[0]}; " if near else ""
