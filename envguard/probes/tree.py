"""Every file below one directory, with its status.

In: a directory. Out: a ``Tree`` of relative paths. Links are followed for files (uv can install by symlink) and never
for directories, so that no cycle is walked; what cannot be listed is noted and left out. ``__pycache__`` is entered
only where bytecode is asked for. Nothing is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from envguard.frozen import Frozen
from envguard.statcache import signature

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

    def digest(self) -> str:
        """Changes whenever a file may have changed, or one came or went."""
        lines = (f"{path}\0{signature(status)}" for path, status in self.files.items())
        return _digest(lines, self.directories, self.unreadable)


def walk(root: Path, *, with_bytecode: bool = False) -> Tree:
    """Walk ``root``; never raises for what lies below it."""
    files: dict[str, os.stat_result] = {}
    directories, caches, unreadable = _visit(root, files.__setitem__)
    bytecode = [path for place in caches for path in _list(root, place)] if with_bytecode else ()
    return Tree(files=files, directories=tuple(directories), bytecode=tuple(bytecode), unreadable=tuple(unreadable))


def digest(root: Path) -> str:
    """``walk(root).digest()``, in two thirds of the time: no status is kept."""
    lines: list[str] = []
    directories, _, unreadable = _visit(root, lambda path, status: lines.append(f"{path}\0{signature(status)}"))
    return _digest(lines, directories, unreadable)


def _digest(lines: Iterable[str], directories: Iterable[str], unreadable: Iterable[str]) -> str:
    text = "\0".join((*lines, "", *directories, "", *unreadable))  # which no name can hold
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _visit(root: Path, see: Callable[[str, os.stat_result], None]) -> tuple[list[str], list[str], list[str]]:
    """Call ``see`` with every file; the directories, those of bytecode, and those that cannot be listed."""
    directories: list[str] = []
    caches: list[str] = []
    unreadable: list[str] = []
    pending = [""]
    base = os.fspath(root)
    while pending:
        place = pending.pop()
        try:
            # Through a descriptor, so that the status of an entry needs no walk down from the root.
            descriptor = os.open(f"{base}/{place}", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            unreadable.append(place.rstrip("/"))
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    name = entry.name
                    path = place + name
                    if not entry.is_dir(follow_symlinks=False):
                        see(path, _status(entry))
                    elif name == BYTECODE:
                        caches.append(path)
                    else:
                        directories.append(path)
                        pending.append(path + "/")
        except OSError:
            unreadable.append(place.rstrip("/"))
        finally:
            os.close(descriptor)
    return directories, caches, unreadable


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # a link that leads nowhere, or round in a circle
        return entry.stat(follow_symlinks=False)


def _list(root: Path, directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(root / directory)]
    except OSError:  # bytecode that nobody can read does nothing either
        return []
