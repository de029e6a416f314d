"""Two sources compared: ``envguard diff A B``.

In: two ``Side``s. Out: a frozen ``Difference``: what changed, in the groups of the report, and what could not be
compared because one side does not know it. It reads nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from envguard.errors import FINDINGS, OK
from envguard.frozen import Frozen
from envguard.pkg import same_version, version
from envguard.probes.interpreter import find_interpreter
from envguard.probes.torch_build import TorchBuild
from envguard.sides import Item, Side, find_source, read_side

Group = Literal["build", "version", "added", "removed", "edited", "environment"]
GROUPS: dict[Group, str] = {
    "build": "Build changed (same version)",
    "version": "Version",
    "added": "Added",
    "removed": "Removed",
    "edited": "Edited files",
    "environment": "Environment",
}
"""Titles, in the order of the report."""


class Change(Frozen):
    """One thing that differs; ``before`` belongs to the first side."""

    group: Group
    subject: str
    before: str | None
    after: str | None


class Difference(Frozen):
    """The whole comparison."""

    left: Side
    right: Side
    changes: tuple[Change, ...]
    """In the order of ``GROUPS``, then by subject."""
    not_compared: tuple[str, ...]
    """What one of the sides does not know, in words."""

    @property
    def exit_code(self) -> int:
        """0 where nothing that both sides know differs, else 1."""
        return FINDINGS if self.changes else OK


def diff_paths(left: Path, right: Path) -> Difference:
    """Compare two sources; markers of a lock are evaluated for the environment beside it, else for this interpreter.

    Raises:
        UsageError: a source cannot be read.
        CheckCrashed: an environment cannot be listed, or ``packaging`` cannot be imported.
    """
    sources = [(path, *find_source(path)) for path in (left, right)]
    environments = [source for _, kind, source in sources if kind == "environment"]
    markers = find_interpreter(environments[0] if environments else None).marker_environment()
    first, second = (read_side(path, kind, source, markers) for path, kind, source in sources)
    return compare(first, second)


def compare(left: Side, right: Side) -> Difference:
    """Compare what both sides know."""
    changes = [*_packages(left, right), *_edited(left, right), *_environment(left, right)]
    order = list(GROUPS)
    changes.sort(key=lambda change: (order.index(change.group), change.subject))
    return Difference(left=left, right=right, changes=tuple(changes), not_compared=tuple(_not_compared(left, right)))


def _packages(left: Side, right: Side) -> Iterator[Change]:
    for name in sorted(left.packages.keys() | right.packages.keys()):
        before, after = left.packages.get(name), right.packages.get(name)
        if before is None or after is None:
            if not _may_be_missing(before or after, left if before is None else right):
                group: Group = "added" if before is None else "removed"
                yield Change(group=group, subject=name, before=_version(before), after=_version(after))
        elif change := _package(name, before, after):
            yield change
    if left.knows_torch and right.knows_torch and left.torch and right.torch and left.torch != right.torch:
        yield Change(group="build", subject="torch build", before=_torch(left.torch), after=_torch(right.torch))


def _may_be_missing(item: Item | None, lacking: Side) -> bool:
    """An extra of a uv.lock need not be installed or exported; that another uv.lock lacks it is a change."""
    return item is not None and item.is_optional and lacking.kind != "uv.lock"


def _package(name: str, before: Item, after: Item) -> Change | None:
    old, new = before.version, after.version
    if old is not None and new is not None and not same_version(old, new):
        group: Group = "build" if _public(old) == _public(new) else "version"
        return Change(group=group, subject=name, before=old, after=new)
    if before.build and after.build and before.build != after.build:
        return Change(group="build", subject=name, before=before.build[:12], after=after.build[:12])
    if before.build and after.build and before.origin != after.origin:
        return Change(group="build", subject=name, before=before.origin or "index", after=after.origin or "index")
    return None


def _public(text: str) -> str:
    parsed = version(text)
    return text if parsed is None else parsed.public


def _version(item: Item | None) -> str | None:
    return None if item is None else item.version or "(no version)"


def _torch(build: TorchBuild) -> str:
    commit = f" git {build.git_version[:12]}" if build.git_version else ""
    return f"{build.version} cuda {build.cuda}{commit}"


def _edited(left: Side, right: Side) -> Iterator[Change]:
    if left.edited is None or right.edited is None:
        return
    for name, path in left.edited ^ right.edited:
        is_now = (name, path) in right.edited
        states = ("as recorded", "edited") if is_now else ("edited", "as recorded")
        yield Change(group="edited", subject=f"{name}: {path}", before=states[0], after=states[1])


def _environment(left: Side, right: Side) -> Iterator[Change]:
    for subject, old, new in (("python", left.python, right.python), ("system", left.system, right.system)):
        if old is not None and new is not None and old != new:
            yield Change(group="environment", subject=subject, before=old, after=new)
    if left.knows_driver and right.knows_driver and left.driver != right.driver:
        yield Change(group="environment", subject="driver", before=left.driver, after=right.driver)
    if left.variables is not None and right.variables is not None:
        for name in left.variables.keys() | right.variables.keys():
            old, new = left.variables.get(name), right.variables.get(name)
            if old != new:
                yield Change(group="environment", subject=name, before=old, after=new)


def _not_compared(left: Side, right: Side) -> Iterator[str]:
    for what, is_known in (
        ("builds of packages", lambda side: any(item.build for item in side.packages.values())),
        ("the build of torch", lambda side: side.knows_torch),
        ("edited files", lambda side: side.edited is not None),
        ("Python", lambda side: side.python is not None),
        ("the driver", lambda side: side.knows_driver),
        ("variables", lambda side: side.variables is not None),
    ):
        ignorant = [side for side in (left, right) if not is_known(side)]
        if ignorant:
            names = " and ".join(f"{side.name} ({side.kind})" for side in ignorant)
            yield f"{what}: not told by {names}"
