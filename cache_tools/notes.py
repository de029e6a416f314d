"""What is worth knowing about a live cache directory although no file in it is bad.

In: a cache directory. Out: ``Note``: entries that are there several times, and a place where torch cannot write, with
what torch 2.11 would do there. It changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cache_tools.kinds import is_torchs
from cache_tools.scan import Scan

READ_ONLY = (
    "torch.compile takes a lock file in it even where everything hits, and dies with {error}: "
    "restore a snapshot into a directory that can be written, and set TORCHINDUCTOR_CACHE_DIR to that"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One remark."""

    id: str
    """``foreign``, ``duplicates``, ``read-only`` or ``unwritable``."""
    message: str


def notes(cache_dir: Path, found: Scan) -> tuple[Note, ...]:
    """Remarks about ``cache_dir``, whose scan is ``found``."""
    remarks: list[Note] = []
    if found.entries and not any(is_torchs(entry.path) for entry in found.entries):
        message = f"{cache_dir} holds nothing that torch.compile writes: is it the cache directory?"
        remarks.append(Note(id="foreign", message=message))
    if reason := unwritable(cache_dir):
        remarks.append(Note(id="read-only" if "read-only" in reason else "unwritable", message=reason))
    if duplicates := found.duplicates:
        sizes = {entry.path: entry.size for entry in found.entries}
        extra = [path for paths in duplicates.values() for path in paths[1:]]
        message = (
            f"{len(duplicates)} graphs have {len(extra)} entries too many, {sum(sizes[path] for path in extra)} bytes: "
            "processes that raced compiled them several times; harmless"
        )
        remarks.append(Note(id="duplicates", message=message))
    return tuple(remarks)


def unwritable(directory: Path) -> str | None:
    """Why torch cannot write to ``directory``, and what it would do; None if it can."""
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        told = READ_ONLY.format(error="OSError 30 (Read-only file system)")
        return f"{directory} is on a read-only file system: {told}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} cannot be written by this user: {READ_ONLY.format(error='PermissionError')}"
    return None
