"""Digests of many files, in parallel and through the cache.

In: files with their status and the algorithm that RECORD used. Out: each one's digest as RECORD writes it, or None
where the file cannot be read. A file is not hashed again while its inode, size and times are those that the cache
remembers; hashlib releases the interpreter lock, so threads use all processors.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from envguard.frozen import Frozen
from envguard.statcache import StatCache, has_settled, signature

Progress = Callable[[int, int], None]
"""Called with (bytes hashed so far, bytes to hash in all), from any thread, one call at a time."""

ALGORITHMS = ("sha256", "sha384", "sha512")
"""Those that the wheel format allows."""
CHUNK = 1 << 20
MAX_THREADS = 16


class Wanted(Frozen):
    """One file to hash."""

    path: str
    """As RECORD has it."""
    status: os.stat_result
    algorithm: str


def digest_files(
    site_packages: Path,
    wanted: Sequence[Wanted],
    cache: StatCache,
    progress: Progress | None = None,
    *,
    anew: bool = False,
) -> dict[str, str | None]:
    """Path to digest, such as ``sha256=47DEQpj8...``; None where the file cannot be read; ``anew``: read every file."""
    name = f"files-{hashlib.sha256(os.fsencode(site_packages)).hexdigest()[:20]}.json"
    known: dict[str, str] = cache.read(name) or {}
    found: dict[str, str | None] = {}
    missed: list[Wanted] = []
    for each in wanted:
        kept = known.get(each.path, "")
        sign, _, remembered = kept.rpartition(" ")
        if kept and not anew and sign == signature(each.status) and remembered.startswith(each.algorithm):
            found[each.path] = remembered
        else:
            missed.append(each)
    if missed:
        started = time.time_ns()
        fresh = _hash_all(site_packages, missed, progress)
        found |= fresh
        settled = {
            each.path: f"{signature(each.status)} {digest}"
            for each in missed
            if (digest := fresh[each.path]) is not None and has_settled(each.status, started)
        }
        if settled:
            cache.write(name, {path: kept for path, kept in known.items() if path not in fresh} | settled)
    return found


def _hash_all(site_packages: Path, wanted: Sequence[Wanted], progress: Progress | None) -> dict[str, str | None]:
    """Each worker takes the next batch until none is left; large files first, so that the end is short."""
    ordered = sorted(wanted, key=lambda each: -each.status.st_size)
    pending = _batches(ordered)
    batches: Iterator[list[Wanted]] = iter(pending)
    found: dict[str, str | None] = {}
    total, done = sum(each.status.st_size for each in ordered), 0
    lock = threading.Lock()
    crash: list[BaseException] = []

    def told(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            if progress is not None:
                progress(done, total)

    def work() -> None:
        try:
            while True:
                with lock:
                    batch = next(batches, None)
                if batch is None or crash:
                    return
                for each in batch:
                    found[each.path] = hash_file(os.path.join(site_packages, each.path), each.algorithm, told)
        except BaseException as error:
            crash.append(error)

    count = min(MAX_THREADS, os.cpu_count() or 1, len(pending))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if crash:
        raise crash[0]
    return found


def _batches(ordered: list[Wanted]) -> list[list[Wanted]]:
    size = 64
    large = sum(each.status.st_size > CHUNK for each in ordered)
    rest = [ordered[start : start + size] for start in range(large, len(ordered), size)]
    return [[each] for each in ordered[:large]] + rest


def hash_file(path: str, algorithm: str, told: Callable[[int], None] = lambda count: None) -> str | None:
    """The digest of one regular file as RECORD writes it; None where it cannot be read."""
    digest: Any = hashlib.new(algorithm)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not make us wait
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb", buffering=0) as handle:
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            while chunk := handle.read(CHUNK):
                digest.update(chunk)
                told(len(chunk))
        except OSError:
            return None
    return f"{algorithm}={base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}"
