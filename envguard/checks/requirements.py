"""PKG: whether what is installed fits together. In: an ``Inspection``. Out: problems.

A requirement comes from the distribution's own metadata, unless the lock rewrites it (``dependency-metadata``,
``override-dependencies``, ``exclude-dependencies``). Lines that are no valid requirement are passed over, as uv and pip
do with what they did not install. What is missing or of another version than locked is PKG001's and PKG002's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from envguard.findings import Check, Problem, Repair
from envguard.inspection import Inspection
from envguard.pkg import applies, canonical, requirement, same_version, satisfies, version
from envguard.probes.distributions import Distribution

if TYPE_CHECKING:
    from packaging.requirements import Requirement

FAMILIES = (
    frozenset({"torch", "torchvision", "torchaudio", "triton"}),
    frozenset({"transformers", "tokenizers", "huggingface-hub"}),
)
"""Distributions that are released for one another: what one says of another must hold."""

TWINS = (("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),)
"""Distributions that are parts of one: their public versions must be equal."""

_EXTRA = re.compile(r"\bextra\b")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+\s*\(?([^()\[\]@]*)\)?")
"""A name and a specifier, and neither extras nor a URL."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class _Installed:
    """The installed distributions as a set of requirements."""

    def __init__(self, case: Inspection) -> None:
        self.case = case
        self.environment = case.observation.interpreter.marker_environment()
        dists = case.observation.distributions
        names = [dist.name for dist in dists]
        self.by_name = {dist.name: dist for dist in dists if names.count(dist.name) == 1 and dist.problem is None}
        self.names = frozenset(names)
        rewrites = None if case.expected is None else case.expected.rewrites
        self.metadata = () if rewrites is None else rewrites.metadata
        self.excludes = frozenset() if rewrites is None else frozenset(map(canonical, rewrites.excludes))
        parsed = [requirement(line) for line in (() if rewrites is None else rewrites.overrides)]
        self.overrides = [each for each in parsed if each is not None]
        self._known: dict[tuple[str, frozenset[str], frozenset[str] | None], tuple[Requirement, ...]] = {}
        self.extras: dict[str, set[str]] = {}
        for name, extra in () if case.expected is None else case.expected.extras:
            self.extras.setdefault(name, set()).add(extra)

    def lines(self, dist: Distribution) -> tuple[str, ...]:
        for each in self.metadata:
            if canonical(each.name) == dist.name and each.version in (None, dist.version):
                return each.requires
        return dist.requires

    def requirements(self, dist: Distribution, only: frozenset[str] | None = None) -> tuple[Requirement, ...]:
        """What ``dist`` needs here (of ``only`` these) and may lack, with the extras that somebody asks of it."""
        key = (dist.name, frozenset(self.extras.get(dist.name, ())), only)
        if key not in self._known:
            self._known[key] = tuple(self._read(dist, key[1], only))
        return self._known[key]

    def _read(self, dist: Distribution, extras: frozenset[str], only: frozenset[str] | None) -> Iterator[Requirement]:
        for line in self.lines(dist):
            asks_extra = _EXTRA.search(line.partition(";")[2]) is not None
            if asks_extra and not extras:
                continue  # most lines of most distributions, and parsing is what takes the time
            if only is not None and _name_of(line) not in only:
                continue
            if self.is_plainly_satisfied(line):
                continue
            parsed = requirement(line)
            if parsed is None or not applies(parsed, self.environment, extras if asks_extra else ()):
                continue
            name = canonical(parsed.name)
            if name in self.excludes:
                continue
            overrides = [each for each in self.overrides if canonical(each.name) == name]
            if overrides:
                yield from (each for each in overrides if applies(each, self.environment, ()))
            else:
                yield parsed

    def is_plainly_satisfied(self, line: str) -> bool:
        """Whether ``line`` holds whatever its marker says and asks for no extra, so that it need not be parsed.

        (Reading requirements and markers takes most of the time here.) False means only that one has to look.
        """
        found = self.by_name.get(_name_of(line))
        plain = _PLAIN.fullmatch(line.partition(";")[0].strip())
        return found is not None and plain is not None and not self.overrides and satisfies(found.version, plain[1])

    def ask_for_extras(self) -> None:
        """Note the extras that installed distributions ask of others, until nothing new is asked for."""
        pending = list(self.by_name.values())
        while pending:
            for parsed in self.requirements(pending.pop()):
                name = canonical(parsed.name)
                asked = self.extras.setdefault(name, set())
                if parsed.extras - asked:
                    asked |= parsed.extras
                    if name in self.by_name:
                        pending.append(self.by_name[name])


def _unsatisfied(case: Inspection) -> Iterable[Problem]:
    installed = _Installed(case)
    installed.ask_for_extras()
    for dist in installed.by_name.values():
        if not _is_judged(case, dist):
            continue
        for parsed in installed.requirements(dist):
            name = canonical(parsed.name)
            if not _is_others(case, installed, dist, name):
                yield from _compare(case, installed, dist, parsed)


def _is_judged(case: Inspection, dist: Distribution) -> bool:
    """Whether ``dist`` is what the lock or the policy wants here."""
    if case.expected is None or any(fnmatchcase(dist.name, canonical(glob)) for glob in case.policy.allow):
        return True
    locked = case.expected.version(dist.name)
    return case.expected.knows(dist.name) and (locked is None or _is_same(dist, locked))


def _is_others(case: Inspection, installed: _Installed, dist: Distribution, name: str) -> bool:
    """Whether another check reports what is wrong between ``dist`` and ``name``."""
    if any({dist.name, name} <= family for family in FAMILIES):
        return name in installed.names  # PKG009
    if name not in installed.names:
        return case.expected is not None and name in case.expected.required  # PKG001
    if name not in installed.by_name:
        return True  # PKG005, PKG006
    locked = None if case.expected is None else case.expected.version(name)
    return locked is not None and not _is_same(installed.by_name[name], locked)  # PKG002


def _is_same(dist: Distribution, locked: str) -> bool:
    have, want = version(dist.version), version(locked)
    if have is None or want is None:
        return dist.version == locked
    return have == want or have.public == want.public  # a local label is BLD001's and PKG002's question


def _compare(case: Inspection, installed: _Installed, dist: Distribution, parsed: Requirement) -> Iterator[Problem]:
    wanted = f"{parsed.name}{parsed.specifier}"
    found = installed.by_name.get(canonical(parsed.name))
    if found is None:
        what = "is not installed"
    elif parsed.specifier.contains(found.version, prereleases=True) or version(found.version) is None:
        return
    else:
        what = f"is {found.version}"
    yield Problem(
        subject=dist.name,
        message=f"{dist.name} {dist.version} requires {wanted}, and {parsed.name} {what}",
        expected=wanted,
        observed=None if found is None else found.version,
        repair=Repair(sync=True) if case.expected is not None else Repair(),
    )


def _families(case: Inspection) -> Iterable[Problem]:
    installed = _Installed(case)
    for family in FAMILIES:
        members = [installed.by_name[name] for name in sorted(family & installed.by_name.keys())]
        for dist in members if len(members) > 1 else ():
            for parsed in installed.requirements(dist, only=family - {dist.name}):
                if canonical(parsed.name) in installed.by_name:
                    yield from _compare(case, installed, dist, parsed)
    for first, *others in TWINS:
        leader = installed.by_name.get(first)
        for dist in [installed.by_name[name] for name in others if name in installed.by_name] if leader else ():
            assert leader is not None
            if not same_version(_public(dist.version), _public(leader.version)):
                yield Problem(
                    subject=dist.name,
                    message=f"{dist.name} is {dist.version}, and {first} is {leader.version}: they are parts of one",
                    expected=_public(leader.version),
                    observed=dist.version,
                    repair=Repair(sync=True),
                )


def _name_of(line: str) -> str:
    found = _NAME.match(line)
    return canonical(found[0]) if found else ""


def _public(text: str) -> str:
    parsed = version(text)
    return text if parsed is None else parsed.public


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="PKG007",
        summary="what every distribution requires is installed in an accepted version",
        why="A package that was installed without its requirements, or whose requirement was moved by another one, "
        "fails at an import or computes something else. Rewrites of requirements in [tool.uv] are honoured.",
        fix="uv sync --locked; where the project knows better than the package, say so in [tool.uv]",
        run=_unsatisfied,
        tier="standard",
        example="delta 1.0 requires epsilon>=2, and epsilon is 1.0",
    ),
    Check(
        id="PKG009",
        summary="distributions that are released for one another fit one another",
        why="torch with torchvision, torchaudio and triton, transformers with tokenizers and huggingface-hub, the "
        "three parts of flashinfer: out of step they crash in native code or pick other kernels. Public versions are "
        "compared, so that a local label such as +cu130 is no difference.",
        fix="install the versions that belong together: uv sync --locked",
        run=_families,
        example="torch 2.11.0 requires triton==3.6.0, and triton is 3.5.1",
    ),
)
