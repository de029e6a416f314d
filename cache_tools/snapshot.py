"""Taking a snapshot of a cache directory into a store.

In: a store, a cache directory (another process may be writing to it) and a name. Out: a ``SnapshotResult``.
Each file is read once, and not at all if its status is that of an earlier snapshot; what changes while it is read, is
empty, cut or does not hash to its name is left out and counted, since torch builds again what is missing but trusts
what is there. Reading files is ``intake.py``'s. It neither compiles nor judges machines.
"""

from __future__ import annotations

import sysconfig
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools import installed, stamps
from cache_tools.errors import storage_errors
from cache_tools.fingerprint import Fingerprint
from cache_tools.intake import Intake, Progress, remember
from cache_tools.kinds import is_torchs
from cache_tools.manifest import TEXT, Manifest, differs_only_in_origin
from cache_tools.store import Store
from cache_tools.target import check_apart
from cache_tools.trust import record_own
from envguard.errors import UsageError
from envguard.frozen import Frozen

if TYPE_CHECKING:
    from cache_tools.secrets import Scanner


class SnapshotResult(Frozen):
    """What a snapshot holds and what it cost."""

    id: str
    new: bool
    """False if the name stood for exactly this content already."""
    entries: int
    bytes: int
    """Of all entries, uncompressed."""
    blobs_written: int
    skipped: Mapping[str, int]
    """Reason → files left out; reasons of ``Scan`` and: not found, changing, being built, cut, damaged, too large.
    And how many kernels in graph entries: torch writes their files from the entry when it hits."""


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
    all_kernels: bool = False,
    on_progress: Progress | None = None,
) -> SnapshotResult:
    """Snapshot ``cache_dir`` as ``name``; ``only``: relative paths to take, None for everything.

    ``build_ms`` is how long compiling them took, if known. ``parent`` is the snapshot that this one grew from; by
    default the one that ``name`` stood for. ``scanner`` looks for secrets in what is read. ``all_kernels``: also keep
    the files of Triton kernels that a graph entry holds; they are of use where another graph misses.

    Raises:
        SecretsError: ``scanner`` found some and its policy is to refuse; no snapshot is visible then.
        UsageError: a bad name or compile id, no such directory, nothing in it to keep, or it and the store overlap.
        CorruptError: ``name`` exists and is damaged.
        StorageError: the store cannot be written; no snapshot is visible then.
    """
    store.check_new_name(name)
    if compile_id is not None and not TEXT.fullmatch(compile_id):
        raise UsageError(f"compile id {compile_id!r:.80} must be 1 to 256 printable ASCII characters")
    check_apart(store.root, {"the cache": cache_dir}, option="--store")
    with storage_errors(f"writing snapshot {name} to {store.root}"), store.adding() as writer:
        intake = Intake(store, writer, cache_dir, scanner=scanner, only=only, all_kernels=all_kernels)
        found = intake.scan()
        skipped = Counter(found.skipped)
        if only is None and found.entries and not any(is_torchs(entry.path) for entry in found.entries):
            raise UsageError(f"{cache_dir} holds nothing that torch.compile writes: give its cache directory")
        wanted = [entry for entry in found.entries if only is None or entry.path in only]
        if only is not None and (absent := len(only) - len(wanted)):
            skipped["not found"] += absent
        previous = store.read_ref(name) if store.ref_path(name).exists() else None
        taken = intake.take(wanted, on_progress)
        skipped.update(taken.skipped)
        if taken.passed_over:
            skipped["kernels in graph entries"] = taken.passed_over
        if not taken.entries:
            raise UsageError(f"{cache_dir} holds nothing to snapshot: run the program that compiles first")
        content = Manifest(
            fingerprint=fingerprint,
            compile_id=compile_id,
            created=_now(),
            tool=_tool(),
            parent=parent or previous,
            build_ms=build_ms,
            kernels=len(frozenset().union(*taken.kernels_of.values())),
            entries=taken.entries,
        )
        writer.commit()
        if scanner:
            scanner.conclude(store, content.entries)
        if previous and _is_the_same(store, previous, content):
            id_, new = previous, False
            record_own(id_)
        else:
            id_, new = store.add_manifest(content, before=record_own)  # what is visible can be restored
            store.set_ref(name, id_)
        remember(store, cache_dir, found.entries, taken)
        stamps.mark_used(store.root, id_)
    return SnapshotResult(
        id=id_,
        new=new,
        entries=len(content.entries),
        bytes=content.size,
        blobs_written=taken.blobs_written,
        skipped=dict(sorted(skipped.items())),
    )


def _is_the_same(store: Store, previous: str, content: Manifest) -> bool:
    origin = str(store.manifest_path(previous))
    return differs_only_in_origin(store.manifest_bytes(previous), content, origin=origin)


def _tool() -> str:
    version = installed.version("dflash_toolkit", Path(sysconfig.get_path("purelib")))
    return f"dflash-toolkit {version or '(not installed)'}"


def _now() -> str:
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 1000:06}Z"
