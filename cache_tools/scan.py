"""What is in a cache directory.

In: a directory, possibly one that another process is writing to. Out: a ``Scan``: the files worth keeping, by kind and
size, and how many were left out for which reason. It never follows a link and opens no file.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cache_tools.kinds import NOT_KEPT, Kind, kind_of
from cache_tools.stamps import Status, status_of
from envguard.errors import UsageError

SAFE_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")
"""What one part of a path may look like, in a cache that we keep and in a manifest that we believe."""
_SAFE_PATH = re.compile(
    rf"{SAFE_NAME.pattern.replace('$', '(?:/|$)')}(?:/{SAFE_NAME.pattern.replace('$', '(?:/|$)')})*"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file of a cache."""

    path: str
    """Relative to the cache directory, with ``/``."""
    kind: Kind
    size: int
    """Bytes."""
    executable: bool
    status: Status = field(default=(0, 0, 0, 0), compare=False)
    """What changes when the file does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """Entries sorted by path, and counts of what was left out."""

    entries: tuple[Entry, ...]
    skipped: dict[str, int]
    """Reason → files: lock, temp, header, link, not a file, unsafe name, empty, vanished."""


def scan(cache_dir: Path) -> Scan:
    """List ``cache_dir``.

    Raises:
        UsageError: it is not a directory or cannot be listed.
    """
    if not cache_dir.is_dir():
        raise UsageError(f"{cache_dir} is not a directory: give the cache that torch writes (TORCHINDUCTOR_CACHE_DIR)")
    entries: list[Entry] = []
    skipped: Counter[str] = Counter()
    for path, status in walk(cache_dir):
        verdict = _judge(path, status)
        if isinstance(verdict, Entry):
            entries.append(verdict)
        else:
            skipped[verdict] += 1
    return Scan(entries=tuple(sorted(entries, key=lambda entry: entry.path)), skipped=dict(sorted(skipped.items())))


def _judge(path: str, status: os.stat_result | None) -> Entry | str:
    if status is None:
        return "vanished"
    if stat.S_ISLNK(status.st_mode):
        return "link"
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    kind = kind_of(path)
    if kind in NOT_KEPT:
        return kind.value
    if not _SAFE_PATH.fullmatch(path):
        return "unsafe name"
    if status.st_size == 0:
        return "empty"
    executable = bool(status.st_mode & stat.S_IXUSR)
    return Entry(path=path, kind=kind, size=status.st_size, executable=executable, status=status_of(status))


def walk(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Every non-directory under ``root`` with its own (not a link's) status; None when it went away meanwhile.

    Raises:
        UsageError: a directory cannot be read; leaving its files out silently would look like a small cache.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(root / folder) as listing:
                found = sorted(listing, key=lambda item: item.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{root / folder} cannot be listed ({error.strerror}): make it readable") from error
        for item in found:
            path = f"{folder}/{item.name}" if folder else item.name
            try:
                if item.is_dir(follow_symlinks=False):
                    pending.append(path)
                else:
                    yield path, item.stat(follow_symlinks=False)
            except FileNotFoundError:
                yield path, None
