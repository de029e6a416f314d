"""Triton's group files, which hold absolute paths, made movable.

In: the bytes of a ``__grp__*.json`` and the cache directory that they point into. Out: the same with a token in place
of the directory, and back. A group file that is copied as it is makes triton read the files of the *old* directory.
Group files that point elsewhere cannot be moved and are left out of a snapshot: triton compiles again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

TOKEN = "@CACHE@"
Roots = tuple[str, ...]
"""Beginnings of absolute paths that lie in the cache directory."""


def is_group(path: str) -> bool:
    """Whether the file at ``path`` is a group file."""
    return path.startswith("triton/") and path.endswith(".json") and path.rpartition("/")[2].startswith("__grp__")


def roots_of(cache_dir: Path) -> Roots:
    """How a group file may name ``cache_dir``."""
    return (f"{os.path.abspath(cache_dir)}/", f"{os.path.realpath(cache_dir)}/")


def tokenise(data: bytes, roots: Roots) -> bytes | None:
    """``data`` with ``TOKEN`` for one of ``roots``; None if it is no group file or points outside of them."""
    return _map_paths(data, lambda path: next((f"{TOKEN}/{path[len(r) :]}" for r in roots if path.startswith(r)), None))


def expand(data: bytes, target: Path) -> bytes | None:
    """``data`` with ``target`` for ``TOKEN``; None if it is not what ``tokenise`` wrote or would leave ``target``."""
    start = f"{TOKEN}/"
    return _map_paths(data, lambda path: f"{target}/{path[len(start) :]}" if path.startswith(start) else None)


def _map_paths(data: bytes, change: Callable[[str], str | None]) -> bytes | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.keys() != {"child_paths"}:
        return None
    children = document["child_paths"]
    if not isinstance(children, dict):
        return None
    changed: dict[str, str] = {}
    for name, path in children.items():
        moved = change(path) if isinstance(path, str) and ".." not in path.split("/") else None
        if moved is None:
            return None
        changed[name] = moved
    return json.dumps({"child_paths": changed}).encode()
