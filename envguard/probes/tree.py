"""Every file below one directory, with its status.

In: a directory. Out: a ``Tree`` of relative paths. Links are followed for files (uv can install by symlink) and never
for directories, so that no cycle is walked; what cannot be listed is noted and left out. ``__pycache__`` is entered
only where bytecode is asked for. Nothing is opened.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from envguard.frozen import Frozen

BYTECODE = "__pycache__"


class Tree(Frozen):
    """One walk. Paths are relative, with ``/``."""

    files: dict[str, os.stat_result]
    """Everything that is no directory, save what lies in ``__pycache__``; a link has the status of what it leads to."""
    directories: tuple[str, ...]
    bytecode: tuple[str, ...]
    """Files in ``__pycache__``; () where they were not asked for."""
    unreadable: tuple[str, ...]
    """Directories that could not be listed."""


def walk(root: Path, *, with_bytecode: bool = False) -> Tree:
    """Walk ``root``; never raises for what lies below it."""
    files: dict[str, os.stat_result] = {}
    directories: list[str] = []
    bytecode: list[str] = []
    unreadable: list[str] = []
    pending = [""]
    base = os.fspath(root)
    while pending:
        place = pending.pop()
        try:
            with _listing(f"{base}/{place}") as entries:
                for entry in entries:
                    path = place + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != BYTECODE:
                            directories.append(path)
                            pending.append(path + "/")
                        elif with_bytecode:
                            bytecode += _list(f"{base}/{path}", path)
                        continue
                    try:
                        files[path] = entry.stat()
                    except OSError:  # a link that leads nowhere, or round in a circle
                        files[path] = entry.stat(follow_symlinks=False)
        except OSError:
            unreadable.append(place.rstrip("/"))
    return Tree(files=files, directories=tuple(directories), bytecode=tuple(bytecode), unreadable=tuple(unreadable))


@contextlib.contextmanager
def _listing(directory: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a directory; through a descriptor, so that their status needs no walk down from the root."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def _list(directory: str, path: str) -> list[str]:
    try:
        return [f"{path}/{name}" for name in os.listdir(directory)]
    except OSError:  # bytecode that nobody can read does nothing either
        return []
