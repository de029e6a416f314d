"""The one door to ``packaging``: versions, specifiers, names and markers.

In: text. Out: values, or None where the text is not what it should be. ``packaging`` is itself one of the packages
that drift, so it is imported on first use and a missing or broken one is a clear ``CheckCrashed``, never a traceback.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from envguard.errors import CheckCrashed

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version


MINIMAL = (25, 0)
"""The first release that has what is used here: markers of lock files (``Marker.evaluate(context=…)``) are of 25.0."""

_REPAIR = "run uv sync --locked --reinstall-package packaging"


@functools.cache
def _packaging(module: str) -> ModuleType:
    try:
        release = str(importlib.import_module("packaging").__version__)
        is_old = tuple(int(each) for each in re.findall(r"\d+", release)[:2]) < MINIMAL
        loaded = importlib.import_module("packaging" if is_old else f"packaging.{module}")
    except Exception as error:  # a half-deleted or edited package can raise anything while it is imported
        raise CheckCrashed(
            f"the package 'packaging', which envguard itself needs, cannot be imported ({type(error).__name__}: "
            f"{error}): {_REPAIR}"
        ) from error
    if is_old:
        wanted = ".".join(map(str, MINIMAL))
        raise CheckCrashed(f"the package 'packaging' is {release}, and envguard needs at least {wanted}: {_REPAIR}")
    return loaded


@functools.cache
def canonical(name: str) -> str:
    """A distribution's normalised name (the rule of PEP 503; needs no ``packaging``)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def version(text: str) -> Version | None:
    """``text`` as a version, None where it is none."""
    module = _packaging("version")
    try:
        parsed: Version = module.Version(text)
    except module.InvalidVersion:
        return None
    return parsed


def specifier_set(text: str) -> SpecifierSet | None:
    """``text`` as a set of version specifiers, None where it is none."""
    module = _packaging("specifiers")
    try:
        parsed: SpecifierSet = module.SpecifierSet(text)
    except module.InvalidSpecifier:
        return None
    return parsed


def same_version(left: str, right: str) -> bool:
    """Whether two versions are equal, local labels included; text that is no version is compared as text."""
    if left == right:
        return True
    left_version, right_version = version(left), version(right)
    if left_version is None or right_version is None:
        return left == right
    return left_version == right_version


def satisfies(text: str, specifier: str) -> bool:
    """Whether the version ``text`` lies in ``specifier`` (pre-releases count); False where either is malformed."""
    parsed, allowed = version(text), specifier_set(specifier)
    return parsed is not None and allowed is not None and allowed.contains(parsed, prereleases=True)


def marker_holds(marker: str, environment: Mapping[str, str], *, groups: Iterable[str] | None = None) -> bool:
    """Whether an environment marker is true in ``environment``.

    ``groups`` are the dependency groups of a pylock.toml, whose markers may ask for them (and for no extra).

    Raises:
        CheckCrashed: ``marker`` is malformed, which a lock never has.
    """
    module = _packaging("markers")
    try:
        parsed = module.Marker(marker)
        if groups is None:
            return bool(parsed.evaluate(dict(environment)))
        chosen = {"extras": frozenset(), "dependency_groups": frozenset(groups)}
        return bool(parsed.evaluate({**environment, **chosen}, context="lock_file"))
    except (module.InvalidMarker, module.UndefinedEnvironmentName, module.UndefinedComparison) as error:
        raise CheckCrashed(f"the marker {marker!r} cannot be evaluated ({error}): run uv lock") from error


def requirement(text: str) -> Requirement | None:
    """``text`` as a requirement (PEP 508), None where it is none."""
    module = _packaging("requirements")
    try:
        parsed: Requirement = module.Requirement(text)
    except module.InvalidRequirement:
        return None
    return parsed


def applies(parsed: Requirement, environment: Mapping[str, str], extras: Iterable[str]) -> bool:
    """Whether the marker of ``parsed`` is true in ``environment`` with any of ``extras``, or without an extra."""
    if parsed.marker is None:
        return True
    module = _packaging("markers")
    try:
        return any(parsed.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))
    except (module.UndefinedEnvironmentName, module.UndefinedComparison):
        return False  # a marker that nothing can evaluate selects nothing, for uv and pip too
