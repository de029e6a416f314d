"""Taking a snapshot of a cache directory into a store.

In: a store, a cache directory (another process may be writing to it) and a name. Out: a ``SnapshotResult``.
Each file is read once; what changes while it is read, is empty, cut or does not hash to its name is left out and
counted, since torch builds again what is missing but trusts what is there. It neither compiles nor judges machines.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools.elf import elf_problem
from cache_tools.errors import storage_errors
from cache_tools.fingerprint import Fingerprint
from cache_tools.kinds import is_self_named, name_matches
from cache_tools.live import not_being_built
from cache_tools.manifest import MAX_ENTRY_BYTES, TEXT, Manifest, ManifestEntry
from cache_tools.relocate import is_group, tokenise
from cache_tools.scan import Entry, scan
from cache_tools.store import Store, check_name
from cache_tools.trust import record_own
from envguard.atomic import sha256_bytes
from envguard.errors import UsageError

if TYPE_CHECKING:
    from cache_tools.secrets import Scanner

ATTEMPTS = 3
RETRY_SECONDS = 0.02
"""Writers rename complete files into place, so a file that changes under us has settled by then."""
TICK_NS = 10_000_000
"""Time stamps of files advance in steps of up to 10 ms: two writes within one step look like none."""
WRITERS = 8
"""Threads: each small file waits for its own sync, and a file system serves several syncs at once."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotResult:
    """What a snapshot holds and what it cost."""

    id: str
    new: bool
    """False if the name stood for exactly this content already."""
    entries: int
    bytes: int
    """Of all entries, uncompressed."""
    blobs_written: int
    skipped: Mapping[str, int]
    """Reason → files left out; reasons of ``Scan`` and: not found, changing, being built, cut, damaged, too large."""


def snapshot(
    store: Store,
    cache_dir: Path,
    *,
    name: str,
    fingerprint: Fingerprint,
    compile_id: str | None = None,
    only: frozenset[str] | None = None,
    parent: str | None = None,
    build_ms: int | None = None,
    scanner: Scanner | None = None,
    on_progress: Progress | None = None,
) -> SnapshotResult:
    """Snapshot ``cache_dir`` as ``name``; ``only``: relative paths to take, None for everything.

    ``build_ms`` is how long compiling them took, if known. ``parent`` is the snapshot that this one grew from; by
    default the one that ``name`` stood for. ``scanner`` looks for secrets in what is read.

    Raises:
        SecretsError: ``scanner`` found some and its policy is to refuse; no snapshot is visible then.
        UsageError: a bad name or compile id, no such directory, or nothing in it to keep.
        CorruptError: ``name`` exists and is damaged.
        StorageError: the store cannot be written; no snapshot is visible then.
    """
    check_name(name)
    if compile_id is not None and not TEXT.fullmatch(compile_id):
        raise UsageError(f"compile id {compile_id!r:.80} must be 1 to 256 printable ASCII characters")
    found = scan(cache_dir)
    skipped = Counter(found.skipped)
    wanted = [entry for entry in found.entries if only is None or entry.path in only]
    if only is not None and (absent := len(only) - len(wanted)):
        skipped["not found"] += absent
    previous = store.read_ref(name) if store.ref_path(name).exists() else None
    with storage_errors(f"writing snapshot {name} to {store.root}"), store.adding():
        entries, written = _take(store, cache_dir, wanted, skipped, scanner, on_progress)
        if not entries:
            raise UsageError(f"{cache_dir} holds nothing to snapshot: run the program that compiles first")
        if scanner:
            scanner.conclude(store, entries)
        content = Manifest(
            fingerprint=fingerprint,
            compile_id=compile_id,
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            tool=f"dflash-toolkit {_version()}",
            parent=parent or previous,
            build_ms=build_ms,
            entries=tuple(entries),
        )
        if previous and _same(store.read_manifest(previous), content):
            id_, new = previous, False
            record_own(id_)
        else:
            id_, new = store.add_manifest(content)
            record_own(id_)  # before the name: what is visible can be restored
            store.set_ref(name, id_)
    return SnapshotResult(
        id=id_,
        new=new,
        entries=len(entries),
        bytes=content.size,
        blobs_written=written,
        skipped=dict(sorted(skipped.items())),
    )


def _take(
    store: Store,
    cache_dir: Path,
    wanted: list[Entry],
    skipped: Counter[str],
    scanner: Scanner | None,
    on_progress: Progress | None,
) -> tuple[list[ManifestEntry], int]:
    total, done = sum(entry.size for entry in wanted), 0
    entries: list[ManifestEntry] = []
    written: set[str] = set()
    with ThreadPoolExecutor(WRITERS) as pool:
        for entry, kept in zip(
            wanted, pool.map(lambda one: _keep(store, cache_dir, one, scanner), wanted), strict=True
        ):
            if isinstance(kept, str):
                skipped[kept] += 1
            else:
                entries.append(kept[0])
                written.update({kept[0].sha256} if kept[1] else ())
            done += entry.size
            if on_progress:
                on_progress(done, total)
    return entries, len(written)


def _keep(store: Store, cache_dir: Path, entry: Entry, scanner: Scanner | None) -> tuple[ManifestEntry, bool] | str:
    """Store one file: its entry and whether its blob is new, or the reason to leave it out."""
    content = _content(cache_dir, entry)
    if isinstance(content, str):
        return content
    if scanner:
        scanner.look(entry.path, entry.kind, content)
    digest = sha256_bytes(content)
    new = store.add_blob(content, digest)
    kept = ManifestEntry(
        path=entry.path, kind=entry.kind, size=len(content), sha256=digest, executable=entry.executable
    )
    return kept, new


def _content(cache_dir: Path, entry: Entry) -> bytes | str:
    """The bytes to keep for ``entry``, or the reason to leave it out."""
    if entry.size > MAX_ENTRY_BYTES:
        return "too large"
    if not entry.path.endswith(".so"):
        data = _read_settled(cache_dir / entry.path)
    else:
        with not_being_built(cache_dir, entry.path) as idle:
            data = _read_settled(cache_dir / entry.path) if idle else "being built"
    if isinstance(data, str):
        return data
    if entry.path.endswith(".so") and elf_problem(io.BytesIO(data), len(data)):
        return "cut"
    if is_self_named(entry.path, entry.kind) and not name_matches(entry.path, entry.kind, data):
        return "damaged"
    if is_group(entry.path):
        return tokenise(data, cache_dir) or "points outside"
    return data or "empty"


def _read_settled(path: Path) -> bytes | str:
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(RETRY_SECONDS)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return "vanished"
        with os.fdopen(fd, "rb") as handle:
            before = os.fstat(fd)
            data = handle.read(MAX_ENTRY_BYTES + 1)
            after = os.fstat(fd)
        unchanged = len(data) == before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns
        if unchanged and not 0 <= time.time_ns() - after.st_mtime_ns < TICK_NS:
            return data
    return "changing"


def _same(old: Manifest, new: Manifest) -> bool:
    """Whether two snapshots differ at most in when, by what, from what and how fast they were made."""
    return (old.fingerprint, old.compile_id, old.entries) == (new.fingerprint, new.compile_id, new.entries)


def _version() -> str:
    found = next(iter(importlib.metadata.distributions(name="dflash-toolkit")), None)
    return found.version if found else "(not installed)"
