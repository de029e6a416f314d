"""Whose finding it is: what several checks see is reported by one of them.

In: an ``Inspection`` or a part of it. Out: answers that the families share. It judges nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from envguard.findings import Repair, Skip
from envguard.inspection import Inspection
from envguard.pkg import canonical
from envguard.probes.distributions import Distribution

MAX_FILES = 10
"""Findings of one kind that are told one by one; more become one finding for the distribution or directory."""
MAX_NAMED = 3

NOT_COMPARED = Skip(reason="the files were not compared with RECORD: this is the fast tier")
NOT_HASHED = Skip(reason="only --deep hashes every file")


def only_names(names: Iterable[str]) -> tuple[str, ...]:
    """Normalised names."""
    return tuple(map(canonical, names))


def broken(distributions: Sequence[Distribution]) -> tuple[frozenset[str], frozenset[str]]:
    """The metadata directories that are damaged (PKG006), and the names that have several of them (PKG005)."""
    damaged = frozenset(dist.directory for dist in distributions if dist.problem is not None)
    several = frozenset(first.name for first, second in pairwise(distributions) if first.name == second.name)
    return damaged, several


def reinstall(case: Inspection, name: str, *, clean: tuple[str, ...] = ()) -> Repair:
    """uv reinstalls only what the lock names, and removes the rest."""
    known = case.expected is not None and case.expected.knows(name)
    return Repair(sync=True, reinstall=(name,), clean=clean) if known else Repair(sync=True)


def is_missing(case: Inspection, name: str) -> bool:
    """Whether PKG001 reports the distribution."""
    installed = {dist.name for dist in case.observation.distributions}
    return case.expected is not None and name in case.expected.required and name not in installed


def is_script(case: Inspection, path: str) -> bool:
    """Whether a path of a RECORD is a command of some distribution."""
    directory, _, name = path.rpartition("/")
    return directory.endswith("../bin") and any(name in dist.scripts for dist in case.observation.distributions)


def is_leftover_of_another_check(case: Inspection, path: str) -> bool:
    """Whether an unowned path is told by PKG001 (its distribution is missing), PKG004 (forbidden) or SHD001."""
    head = path.partition("/")[0]
    name = canonical(head.partition(".")[0])
    shadowing = {
        each.module for each in case.observation.imports if each.own is None and (each.origin or each.portions)
    }
    return (
        is_missing(case, name)
        or any(fnmatchcase(name, canonical(glob)) for glob in case.policy.forbid)
        or head.partition(".")[0] in shadowing
    )
