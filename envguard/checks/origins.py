"""PKG: where each distribution was installed from. In: an ``Inspection``. Out: problems.

``direct_url.json`` of the distribution is compared with the source in the lock. Whether the content is that of the
source is another question (BLD002, INT).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.lock import Source
from envguard.probes.distributions import Distribution, Origin


def _origin(case: Inspection) -> Iterable[Problem] | Skip:
    if case.expected is None:
        return case.without_lock()
    return list(_foreign(case))


def _foreign(case: Inspection) -> Iterator[Problem]:
    assert case.expected is not None
    for dist in case.observation.distributions:
        source = case.expected.sources.get(dist.name)
        if source is None or dist.problem is not None or dist.directory.endswith(".egg-info"):
            continue  # PKG003's and PKG006's; an egg-info cannot say where it is from
        expected, observed = _describe_source(source, case.lock.parent), _describe_origin(dist.origin)
        if not _agrees(source, dist, case.lock.parent):
            yield Problem(
                subject=dist.name,
                message=f"{dist.name} {dist.version} was installed from {observed}, and {case.lock.name} takes it from "
                f"{expected}",
                expected=expected,
                observed=observed,
                repair=Repair(sync=True, reinstall=(dist.name,)),
            )


def _agrees(source: Source, dist: Distribution, home: Path) -> bool:
    origin = dist.origin
    if source.kind == "registry":
        return origin is None
    if source.kind == "virtual" or origin is None:
        return source.kind == "virtual"
    if source.kind == "git":
        return origin.commit is not None and origin.commit == urldefrag(source.location).fragment
    if source.kind == "url":
        return urldefrag(origin.url).url == urldefrag(source.location).url
    is_same = _path(origin.url) == Path(os.path.realpath(home / source.location))
    return is_same and (source.kind == "path" or origin.editable == (source.kind == "editable"))


def _path(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(os.path.realpath(unquote(parts.path))) if parts.scheme == "file" else None


def _describe_source(source: Source, home: Path) -> str:
    if source.kind == "registry":
        return "an index"
    if source.kind in ("git", "url"):
        return f"{source.kind} {_without_login(source.location)}"
    return f"{source.kind} {os.path.realpath(home / source.location)}"


def _describe_origin(origin: Origin | None) -> str:
    if origin is None:
        return "an index"
    if origin.commit is not None:
        return f"git {_without_login(origin.url)}#{origin.commit}"
    return ("editable " if origin.editable else "") + _without_login(origin.url)


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.username else url


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="PKG008",
        summary="every distribution was installed from where the lock takes it",
        why="An editable install of another checkout, another commit, or a wheel from a directory carries the locked "
        "version number and is other code.",
        fix="uv sync --locked --reinstall-package NAME",
        run=_origin,
        example="alpha 1.0 was installed from file:///tmp/alpha.whl, and uv.lock takes it from an index",
    ),
)
