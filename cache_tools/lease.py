"""Who is using a store right now, across processes and machines: writers, users of a snapshot, the one that prunes.

In: a store's directory. Out: small files under ``leases/`` that live as long as their block. One that a killed process
left counts no more: on its own machine as soon as the process is gone, elsewhere after ``LIFETIME``. This works where
locks do not cross machines, since it needs only to create and to list: of two that come at once, each first shows
itself and then looks, so at least one sees the other.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from cache_tools.errors import StorageError
from cache_tools.sharing import make_folder
from envguard import fsops
from envguard.frozen import Frozen

log = logging.getLogger(__name__)

LIFETIME = 7 * 24 * 3600
"""Seconds that a lease of another machine counts."""
PATIENCE = 600
"""Seconds to wait for somebody else's turn."""
_POLL = 0.02
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
WRITER = "writer"
PRUNER = "prune"


class Lease(Frozen):
    """One lease that counts."""

    path: Path
    subject: str
    """``writer``, ``prune``, or the id of the snapshot in use."""
    holder: str
    """``process 123 on host``."""


@contextlib.contextmanager
def writing(root: Path) -> Iterator[None]:
    """Hold off pruning (not other writers) while blobs are written or relied upon that no manifest names yet."""
    with _enter(root, WRITER):
        yield


@contextlib.contextmanager
def using(root: Path, id_: str) -> Iterator[None]:
    """Keep ``prune`` from removing snapshot ``id_``; nothing where the store cannot be written, hence not pruned."""
    try:
        lease = _enter(root, id_)
        lease.__enter__()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        log.info("no lease on a store that cannot be written: %s", error)
        yield
        return
    try:
        yield
    finally:
        lease.__exit__(None, None, None)


def reading(root: Path) -> contextlib.AbstractContextManager[None]:
    """Hold off pruning while all of a store is read; nothing where the store cannot be written, hence not pruned."""
    return using(root, WRITER)


@contextlib.contextmanager
def pruning(root: Path, patience: float = PATIENCE) -> Iterator[Path]:
    """Be the only one that prunes, with no writer at work; yields the lease, whose time is the store's clock.

    Raises:
        StorageError: somebody else prunes, or writes for longer than ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    with _alone(root, deadline) as own:  # who comes from now on sees it and waits
        while writers := [lease for lease in alive(root) if lease.subject == WRITER]:
            _wait(deadline, f"{root} is written to by {writers[0].holder}")
        yield own


def alive(root: Path) -> tuple[Lease, ...]:
    """Every lease that counts."""
    return tuple(lease for path in _files(root) if (lease := _read(path)))


def dead(root: Path) -> tuple[Path, ...]:
    """Files of leases that count no more."""
    return tuple(path for path in _files(root) if _read(path) is None)


def _files(root: Path) -> list[Path]:
    folder = root / "leases"
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".lock")]
    except FileNotFoundError:
        return []


def owner() -> str:
    """This process, for the name of a temporary file; see ``is_over``."""
    pid = os.getpid()
    return f"{pid}.{_born(pid) or 0}.{hashlib.sha256(_place().encode()).hexdigest()[:12]}"


def is_over(owner: str, age: float, lifetime: float = 24 * 3600) -> bool:
    """Whether the process that ``owner()`` named is gone, or on another machine and ``age`` (seconds) too old."""
    pid, _, rest = owner.partition(".")
    born, _, place = rest.partition(".")
    if place != hashlib.sha256(_place().encode()).hexdigest()[:12] or not pid.isdecimal():
        return age > lifetime
    return str(_born(int(pid))) != born


@contextlib.contextmanager
def _enter(root: Path, subject: str) -> Iterator[None]:
    """Hold a lease that was taken while nobody pruned."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with _lease(root, subject):
            pruners = [lease for lease in alive(root) if lease.subject == PRUNER]
            if not pruners:  # ours was visible before we looked: of two that come at once, one sees the other
                yield
                return
        _wait(deadline, f"{root} is being pruned by {pruners[0].holder}")


@contextlib.contextmanager
def _alone(root: Path, deadline: float) -> Iterator[Path]:
    """Hold the only lease for pruning; who meets another steps back and tries again."""
    while True:
        with _lease(root, PRUNER) as own:
            others = [lease for lease in alive(root) if lease.subject == PRUNER and lease.path != own]
            if not others:
                yield own
                return
        import random  # 2 ms, which only somebody who has to wait owes

        _wait(deadline, f"{root} is being pruned by {others[0].holder}", random.uniform(_POLL, 10 * _POLL))


@contextlib.contextmanager
def _lease(root: Path, subject: str) -> Iterator[Path]:
    folder = root / "leases"
    with contextlib.suppress(FileExistsError):
        make_folder(folder, like=root / "blobs")
    host = re.sub(r"[^A-Za-z0-9_.]", "_", os.uname().nodename)[:64]
    # All is in the name: there is no moment without it, and an empty file can be made on a full disk.
    path = folder / f"{subject}-{owner()}-{host}-{os.urandom(8).hex()}.lock"
    os.close(fsops.create(path, mode=0o600))
    try:
        yield path
    finally:
        fsops.unlink(path, missing_ok=True)


def _read(path: Path) -> Lease | None:
    """The lease that a file stands for; None if it counts no more."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    subject, _, rest = path.name.partition("-")
    who, _, rest = rest.partition("-")
    host = rest.partition("-")[0]
    if is_over(who, age, LIFETIME):
        return None
    return Lease(path=path, subject=subject, holder=f"process {who.partition('.')[0]} on {host}")


@functools.cache
def _place() -> str:
    """Where process ids mean the same: this start of this machine, and this container's numbering."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{os.uname().nodename} without /proc"


def _born(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: a number may have gone to another process; None if gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            fields = handle.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if os.path.isdir("/proc/self") or not _exists(pid) else 0
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _wait(deadline: float, problem: str, seconds: float = _POLL) -> None:
    if time.monotonic() > deadline:
        raise StorageError(f"{problem}: repeat this later")
    time.sleep(seconds)
