"""The closer look through the cache: the same files beside the same RECORDs compare as they did before.

In: a site-packages directory, and the call that compares what lies in it. Out: ``Compared``. Every file that the
comparison saw, inside site-packages or elsewhere, is looked at on every run: its device, inode, size and times, or else
it is all read anew. Only a comparison that found every file as its RECORD says is remembered, and only once all files
have settled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from envguard.frozen import Frozen
from envguard.probes.contents import Contents, Overlap
from envguard.probes.distributions import Distribution
from envguard.probes.elf import CudaLinks
from envguard.probes.tree import Tree, digest, walk
from envguard.statcache import StatCache, has_settled, signature

EDITION = 1
"""Raise it with every change of what ``contents.py`` or ``elf.py`` finds in the same files."""


class Compared(Frozen):
    """What reading the installed files tells."""

    contents: Contents
    cuda_links: CudaLinks


def compare(
    site_packages: Path,
    distributions: Sequence[Distribution],
    watched: frozenset[str],
    read: Callable[[Tree], Compared],
    cache: StatCache,
) -> Compared:
    """What ``read`` tells of the walked ``site_packages``, remembered."""
    started = time.time_ns()
    installed = [(dist.directory, dist.name, dist.has_record) for dist in distributions]
    asked = sha256(repr((EDITION, installed, sorted(watched))).encode()).hexdigest()
    name = f"compared-{sha256(os.fsencode(site_packages)).hexdigest()[:20]}.json"
    known = cache.read(name)
    if known is not None and known.get("asked") == asked and known["tree"] == digest(site_packages):
        elsewhere = _look(site_packages, known["elsewhere"])
        if known["elsewhere"] == {path: signature(status) for path, status in elsewhere.items()}:
            return _read_document(known)
    tree = walk(site_packages)
    compared = read(tree)
    elsewhere = _look(site_packages, compared.contents.elsewhere)
    seen = (*tree.files.values(), *elsewhere.values())
    if not compared.contents.changed and all(has_settled(status, started) for status in seen):
        signatures = {path: signature(status) for path, status in elsewhere.items()}
        cache.write(name, {"asked": asked, "tree": tree.digest(), "elsewhere": signatures, **_document(compared)})
    elif known is not None:
        cache.write(name, None)  # no later look needs to take its digest first
    return compared


def _look(site_packages: Path, paths: Iterable[str]) -> dict[str, os.stat_result]:
    """The status of each of ``paths`` that is there."""
    found: dict[str, os.stat_result] = {}
    for path in paths:
        try:
            found[path] = os.stat(os.path.join(site_packages, path))
        except (OSError, ValueError):  # the comparison, which is done anew, tells of it
            continue
    return found


def _document(compared: Compared) -> dict[str, Any]:
    contents, links = compared.contents, compared.cuda_links
    return {
        "overlaps": [[each.path, each.distributions] for each in contents.overlaps],
        "unowned": contents.unowned,
        "modules": contents.modules,
        "torch": links.torch,
        "needs": links.modules,
        "provided": sorted(links.provided),
    }


def _read_document(document: Mapping[str, Any]) -> Compared:
    contents = Contents(
        hashed="watched",
        changed=(),
        overlaps=tuple(Overlap(path=path, distributions=tuple(names)) for path, names in document["overlaps"]),
        unowned=tuple(document["unowned"]),
        modules=tuple(document["modules"]),
        bytecode=(),
        elsewhere=tuple(document["elsewhere"]),
    )
    links = CudaLinks(
        torch=tuple(document["torch"]),
        modules=tuple((path, tuple(names)) for path, names in document["needs"]),
        provided=frozenset(document["provided"]),
    )
    return Compared(contents=contents, cuda_links=links)
