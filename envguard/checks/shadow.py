"""SHD: what a watched import resolves to. In: an ``Inspection``. Out: problems. Nothing was imported."""

from __future__ import annotations

import os
from collections.abc import Iterable

from envguard.checks.causes import broken, is_missing, reinstall
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.probes.imports import ImportOrigin


def _shadowed(case: Inspection) -> Iterable[Problem] | Skip:
    _, several = broken(case.observation.distributions)
    changed = {each.path for each in case.observation.contents.changed} if case.observation.contents else set()
    problems = []
    for each in case.observation.imports:
        if each.distribution in several or each.own in changed or is_missing(case, each.distribution):
            continue  # PKG005, INT001 and INT002, PKG001
        if each.own is None:
            problems += _not_installed(case, each)
        elif not _is_own(case, each):
            problems.append(_foreign(case, each))
    return problems


def _is_own(case: Inspection, each: ImportOrigin) -> bool:
    assert each.own is not None
    place = case.observation.interpreter.site_packages / each.own
    if each.origin is None:
        return False
    return each.origin == str(place) or os.path.realpath(each.origin) == os.path.realpath(place)


def _foreign(case: Inspection, each: ImportOrigin) -> Problem:
    own = case.observation.interpreter.site_packages / (each.own or "")
    found = each.origin or ", ".join(each.portions)
    is_inside = own.parent.as_posix() in each.portions
    what = (
        f"gives {each.origin}" if each.origin else f"gives an empty namespace ({found})" if found else "gives nothing"
    )
    return Problem(
        subject=each.module,
        message=f"import {each.module} {what} instead of {own} of {each.distribution}",
        expected=str(own),
        observed=found or "nothing",
        fix=None
        if not each.origin and (is_inside or not found)
        else f"rename or delete {found}, or take its directory off the path",
        repair=reinstall(case, each.distribution) if not each.origin else Repair(),
    )


def _not_installed(case: Inspection, each: ImportOrigin) -> list[Problem]:
    place = each.origin or (each.portions[0] if each.portions else None)
    if place is None or any(dist.name == each.distribution for dist in case.observation.distributions):
        return []
    kind = "an empty namespace" if each.origin is None else "a module"
    site_packages = str(case.observation.interpreter.site_packages)
    leftover = os.path.join(site_packages, each.module)
    return [
        Problem(
            subject=each.module,
            message=f"import {each.module} succeeds and gives {kind} ({place}), and {each.distribution} is not "
            "installed",
            observed=place,
            fix=f"delete {place}: no installed distribution owns it",
            repair=Repair(delete=(leftover,)) if place == leftover else Repair(),
        )
    ]


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="SHD001",
        summary="an import of a watched distribution gives that distribution's own file",
        why="A directory of the same name in the current directory, on PYTHONPATH or left behind in site-packages wins "
        "over the installed package, or makes a package that is not there look importable.",
        fix="uv sync --locked --reinstall-package with the distribution's name",
        run=_shadowed,
    ),
)
