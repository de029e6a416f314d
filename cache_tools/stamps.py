"""What a store remembers to save work, and may lose: files known by their status, packs known to be whole, last uses.

In: facts. Out: the same facts, or nothing where a stamp is absent, damaged or not this user's own; then the work is
done again. A status is remembered only once it is older than the clock's step, so that a later write must change it.
Losing every stamp loses no snapshot. Not trusted from somebody else: a stamp says that a file holds what it held.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from cache_tools.sharing import make_folder
from envguard import atomic, fsops

log = logging.getLogger(__name__)

TICK_NS = 10_000_000
"""Time stamps of files advance in steps of up to 10 ms: two writes within one step look like none."""

Status = tuple[int, int, int, int]
"""Inode, size, and modification and change time in ns; the latter no program can set back."""


def status_of(status: os.stat_result) -> Status:
    """What must stay the same for a file to hold what it held."""
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_settled(status: Status, now_ns: int) -> bool:
    """Whether a write after ``now_ns`` would show."""
    return max(status[2], status[3]) + TICK_NS < now_ns


def file_stamp(store: Path, cache_dir: Path) -> Path:
    """Where the files of ``cache_dir`` are remembered."""
    return store / "stamps" / f"files-{hashlib.sha256(os.fsencode(os.path.realpath(cache_dir))).hexdigest()[:32]}.stamp"


def pack_stamp(store: Path) -> Path:
    """Where the packs that were written or checked here are remembered."""
    return store / "stamps" / "packs.stamp"


def use_stamp(store: Path, id_: str) -> Path:
    """Where the last use of a snapshot is remembered."""
    return store / "stamps" / f"used-{id_}.stamp"


def read(path: Path) -> dict[str, list[int | str]]:
    """The rows of a stamp; none if there is no whole one of this user."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        log.debug("no stamp: %s", error)
        return {}
    with os.fdopen(fd, "rb") as handle:
        status = os.fstat(fd)
        data = handle.read()
    own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and status.st_nlink == 1
    digest, _, body = data.partition(b"\n")
    if not own or digest != hashlib.sha256(body).hexdigest().encode():
        log.debug("stamp %s is not ours or damaged: ignored", path)
        return {}
    rows: dict[str, list[int | str]] = json.loads(body)
    return rows


def write(path: Path, rows: Mapping[str, list[int | str]]) -> None:
    """Replace a stamp: at once, but without waiting for the disk. A store that cannot be written stays without."""
    body = json.dumps(rows, separators=(",", ":")).encode()
    data = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    temp = atomic.temp_name(path)
    try:
        with contextlib.suppress(FileExistsError):
            make_folder(path.parent, like=path.parent.parent / "blobs")
        fd = fsops.create(temp, mode=0o600)
        try:
            fsops.write(fd, data)
        finally:
            os.close(fd)
        fsops.rename(temp, path)
    except OSError as error:
        log.info("no stamp written: %s", error)
        with contextlib.suppress(OSError):
            fsops.unlink(temp, missing_ok=True)


def doubt_packs(store: Path) -> None:
    """Forget which packs are whole: the next snapshot checks them bit by bit, and replaces what it can."""
    with contextlib.suppress(OSError):  # a store that cannot be written, hence not added to
        fsops.unlink(pack_stamp(store), missing_ok=True)


def mark_used(store: Path, id_: str) -> None:
    """Remember that a snapshot was taken or restored now."""
    write(use_stamp(store, id_), {"used": [time.time_ns()]})


def last_use(store: Path, id_: str) -> int:
    """When a snapshot was last used, in ns since 1970; 0 if nobody remembers."""
    (when,) = read(use_stamp(store, id_)).get("used", [0])
    return when if isinstance(when, int) else 0
