"""What is in a cache directory.

In: a directory, possibly one that another process is writing to. Out: a ``Scan``: the files worth keeping, by kind and
size, and how many were left out for which reason. It never follows a link and opens no file. A directory that changed
while it was listed can hide a file that was there all the time, so all is listed again until nothing changed.
"""

from __future__ import annotations

import operator
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cache_tools.kinds import GRAPHS, NOT_KEPT, Kind, is_left_over, kind_of
from cache_tools.stamps import Status, status_of
from envguard.errors import UsageError
from envguard.frozen import Frozen

SAFE_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")
"""What one part of a path may look like, in a cache that we keep and in a manifest that we believe."""
SAFE_PATH = re.compile(rf"{SAFE_NAME.pattern.replace('$', '(?:/|$)')}(?:/{SAFE_NAME.pattern.replace('$', '(?:/|$)')})*")
_name = operator.attrgetter("name")
_GRAPH_FOLDERS = frozenset(kind.value for kind in GRAPHS)
ATTEMPTS = 4
RETRY_SECONDS = 0.05


class Entry(NamedTuple):
    """One file of a cache."""

    path: str
    """Relative to the cache directory, with ``/``."""
    kind: Kind
    size: int
    """Bytes."""
    executable: bool
    status: Status = (0, 0, 0, 0)
    """What changes when the file does."""


class Scan(Frozen):
    """Entries sorted by path, and counts of what was left out."""

    entries: tuple[Entry, ...]
    skipped: dict[str, int]
    """Reason → files: lock, temp, header, link, not a file, unsafe name, empty, vanished."""
    settled: bool = True
    """False if a writer was busy during each of the attempts: an entry may be missing, none is half."""
    passed_over: int = 0
    """Folders that were not listed."""

    @property
    def duplicates(self) -> dict[str, tuple[str, ...]]:
        """Folder of a key → its entries, where there are several: processes that raced wrote the same graph."""
        folders: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.kind in GRAPHS:
                folders.setdefault(entry.path.rpartition("/")[0], []).append(entry.path)
        return {folder: tuple(paths) for folder, paths in folders.items() if len(paths) > 1}


def scan(
    cache_dir: Path,
    *,
    on_graph: Callable[[Entry], object] | None = None,
    pass_over: Callable[[str], bool] | None = None,
) -> Scan:
    """List ``cache_dir``.

    Graph entries come first, so that what ``on_graph`` learns from them can tell which folders to ``pass_over`` (called
    with the relative path of each). Both may be called again for the same one.

    Raises:
        UsageError: it is not a directory or cannot be listed.
    """
    if not cache_dir.is_dir():
        raise UsageError(f"{cache_dir} is not a directory: give the cache that torch writes (TORCHINDUCTOR_CACHE_DIR)")
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(RETRY_SECONDS)
        folders = _Folders()
        entries: list[Entry] = []
        skipped: Counter[str] = Counter()
        passed_over = _PassedOver(pass_over)
        for path, status in walk(cache_dir, on_folder=folders.note, pass_over=passed_over):
            verdict = _judge(path, status)
            if isinstance(verdict, Entry):
                entries.append(verdict)
                if on_graph and verdict.kind in GRAPHS:
                    on_graph(verdict)
            else:
                skipped[verdict] += 1
        if settled := not (skipped["vanished"] or folders.changed()):
            break
    entries.sort()  # by path, of which there are no two alike
    return Scan(
        entries=tuple(entries),
        skipped={k: skipped[k] for k in sorted(skipped) if skipped[k]},
        settled=settled,
        passed_over=passed_over.count,
    )


class _PassedOver:
    """Counts the folders that a rule passes over."""

    def __init__(self, rule: Callable[[str], bool] | None) -> None:
        self._rule = rule
        self.count = 0

    def __call__(self, folder: str) -> bool:
        verdict = self._rule is not None and self._rule(folder)
        self.count += verdict
        return verdict


class _Folders:
    """When each folder last changed, as it was before it was listed."""

    def __init__(self) -> None:
        self._changed_ns: dict[str, int] = {}

    def note(self, folder: str) -> None:
        if not folder.endswith("/locks"):
            self._changed_ns[folder] = os.lstat(folder).st_mtime_ns

    def changed(self) -> bool:
        try:
            return any(os.lstat(folder).st_mtime_ns != before for folder, before in self._changed_ns.items())
        except FileNotFoundError:
            return True


def _judge(path: str, status: os.stat_result | None) -> Entry | str:
    if status is None:
        return "vanished"
    if not stat.S_ISREG(status.st_mode):
        return "link" if stat.S_ISLNK(status.st_mode) else "not a file"
    kind = kind_of(path)
    if kind in NOT_KEPT:
        return kind.value
    if kind is Kind.UNKNOWN and is_left_over(path):
        return Kind.TEMP.value
    if not SAFE_PATH.fullmatch(path):
        return "unsafe name"
    if status.st_size == 0:
        return "empty"
    return Entry(path, kind, status.st_size, bool(status.st_mode & stat.S_IXUSR), status_of(status))


def walk(
    root: Path,
    *,
    on_folder: Callable[[str], object] | None = None,
    pass_over: Callable[[str], bool] | None = None,
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Every non-directory under ``root`` with its own (not a link's) status; None when it went away meanwhile.

    Graph entries come first. ``on_folder`` is called with the path of each directory before it is listed; those that
    ``pass_over`` wants (relative path) are not.

    Raises:
        UsageError: a directory cannot be read; leaving its files out silently would look like a small cache.
    """
    top = os.fspath(root)
    pending = [""]
    while pending:
        inside = pending.pop()
        folder = f"{top}/{inside}" if inside else top
        try:
            if on_folder:
                on_folder(folder)
            with os.scandir(folder) as listing:
                found = sorted(listing, key=_name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{folder} cannot be listed ({error.strerror}): make it readable") from error
        for item in found:
            path = f"{inside}/{item.name}" if inside else item.name
            try:
                status = None if item.is_dir(follow_symlinks=False) else item.stat(follow_symlinks=False)
            except FileNotFoundError:
                yield path, None
                continue
            if status:
                yield path, status
            elif not (pass_over and pass_over(path)):
                pending.append(path)
        if not inside:
            pending.sort(key=_GRAPH_FOLDERS.__contains__)  # the last is listed first
