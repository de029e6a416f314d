"""Carrying out a restore plan.

In: a ``RestorePlan`` (see plan.py). Out: a ``RestoreResult``, and the files of the snapshot in the target.
Everything is read, verified, written to a staging directory and made durable at once before the target is touched. A
target that is absent appears in one rename; an existing one is completed file by file where files are absent or
provably broken. No existing file is ever opened for writing: a process may have it mapped. Stopped at any moment it
leaves misses at worst, and its staging directory to the next restore, which removes it.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cache_tools import lease, stamps
from cache_tools.errors import READ_ONLY_ADVICE, CorruptError, IncompatibleError, storage_errors
from cache_tools.intake import Progress
from cache_tools.manifest import ManifestEntry
from cache_tools.packs import LARGE
from cache_tools.plan import Action, Match, Mode, RestorePlan, best_match, completing, plan_restore
from cache_tools.readahead import Content, contents
from cache_tools.relocate import expand, is_group
from cache_tools.target import check_replaceable, check_target, exchange, make_parents, staging_directory, sweep_staging
from cache_tools.trust import Standing, require
from envguard import fsops
from envguard.errors import UsageError
from envguard.frozen import Frozen

__all__ = ["Action", "Match", "Mode", "RestorePlan", "RestoreResult", "best_match", "execute", "plan_restore"]


class RestoreResult(Frozen):
    """What was done, in files, and ``bytes`` written."""

    added: int
    repaired: int
    present: int
    kept: int
    bytes: int


def execute(plan: RestorePlan, *, force: bool = False, on_progress: Progress | None = None) -> RestoreResult:
    """Do what the plan says; ``force`` ignores fatal differences.

    Raises:
        UntrustedError: the snapshot is not trusted any more.
        IncompatibleError: a fatal field differs; the message names each and why it matters.
        CorruptError: a blob is damaged; the message names the file, and the target is untouched.
        UsageError: the target has become unsafe.
        StorageError: the file system refuses.
    """
    check_target(plan.target)
    doing = f"restoring {plan.id[:12]} to {plan.target}"
    with storage_errors(doing, read_only=READ_ONLY_ADVICE), lease.using(plan.store.root, plan.id):
        if not plan.store.manifest_path(plan.id).exists():
            raise UsageError(f"snapshot {plan.id[:12]} was pruned a moment ago: choose another, see dflash cache list")
        require(plan.store, plan.id, plan.manifest, allow_untrusted=plan.trust.standing is Standing.UNTRUSTED)
        if plan.comparison.fatal and not force:
            raise IncompatibleError(_refusal(plan))
        stamps.mark_used(plan.store.root, plan.id)
        # A merge stages inside the target: it may be a mount point, and a link cannot leave a file system.
        where = plan.target.parent if plan.whole else plan.target
        sweep_staging(plan.target.parent, plan.target.name)
        sweep_staging(plan.target, plan.target.name)
        if not plan.whole and not any(action in (Action.ADD, Action.REPAIR) for action, _ in plan.actions):
            return _result(plan, Counter(), 0)
        fsops.make_dirs(where, mode=0o700)
        with staging_directory(where, plan.target.name) as staging:
            try:
                written = _stage(plan, staging, on_progress)
            except CorruptError:
                stamps.doubt_packs(plan.store.root)
                raise
            if plan.whole and not _appear(plan, staging):
                plan = completing(plan)
            lost = Counter[Action]() if plan.whole else _merge(plan, staging)
    return _result(plan, lost, written)


def _result(plan: RestorePlan, lost: Counter[Action], written: int) -> RestoreResult:
    return RestoreResult(
        added=plan.count(Action.ADD) - lost[Action.ADD],
        repaired=plan.count(Action.REPAIR),
        present=plan.count(Action.PRESENT),
        kept=plan.count(Action.KEEP) + lost[Action.ADD],
        bytes=written,
    )


def _refusal(plan: RestorePlan) -> str:
    reasons = "; ".join(
        f"{field.name} is {field.snapshot!r} there and {field.here!r} here ({field.why})"
        for field in plan.comparison.fatal
    )
    return f"snapshot {plan.id[:12]} cannot be used here: {reasons}"


def _stage(plan: RestorePlan, staging: Path, on_progress: Progress | None) -> int:
    """Write every file that is needed, verified and durable, under ``staging``; the bytes written."""
    needed = [entry for action, entry in plan.actions if action in (Action.ADD, Action.REPAIR)]
    root = os.fspath(staging)
    made = {""}
    total, done = sum(entry.size for entry in needed), 0
    with fsops.Writeback(staging) as writeback:
        for entry, pieces in _contents(plan, needed):
            _make_folder(root, entry.path[: max(entry.path.rfind("/"), 0)], made)
            written = _write(f"{root}/{entry.path}", entry, pieces)
            writeback.note(written)
            done += written
            if on_progress:
                on_progress(done, total)
    fsops.sync_tree(staging, [f"{root}/{entry.path}" for entry in needed], [f"{root}/{folder}" for folder in made])
    return done


def _make_folder(root: str, folder: str, made: set[str]) -> None:
    """Create ``folder`` (relative to the new directory ``root``) and those above it unless they are ``made``."""
    if folder not in made:
        _make_folder(root, folder[: max(folder.rfind("/"), 0)], made)
        fsops.mkdir(f"{root}/{folder}", mode=0o755)
        made.add(folder)


def _write(path: str, entry: ManifestEntry, pieces: Iterable[Content]) -> int:
    fd = fsops.create(path, mode=0o755 if entry.executable else 0o644)
    try:
        written = 0
        for data in pieces:
            fsops.write(fd, data)
            written += len(data)
        return written
    finally:
        os.close(fd)


def _contents(plan: RestorePlan, needed: Sequence[ManifestEntry]) -> Iterator[tuple[ManifestEntry, Iterable[Content]]]:
    """What to write, verified; of a large file piece by piece, verified once its last piece is out."""
    for entry, data in contents(plan.store, [entry for entry in needed if entry.size < LARGE]):
        _check_length(plan, entry, len(data))
        yield entry, (_moved(plan, entry, bytes(data)) if is_group(entry.path) else data,)
    for entry in needed:
        if entry.size >= LARGE and is_group(entry.path):
            yield entry, (_moved(plan, entry, b"".join(_large(plan, entry))),)
        elif entry.size >= LARGE:
            yield entry, _large(plan, entry)


def _large(plan: RestorePlan, entry: ManifestEntry) -> Iterator[bytes]:
    length = 0
    for chunk in plan.store.blob_chunks(entry.sha256, limit=entry.size):
        length += len(chunk)
        yield chunk
    _check_length(plan, entry, length)


def _moved(plan: RestorePlan, entry: ManifestEntry, data: bytes) -> bytes:
    moved = expand(data, plan.target)
    if moved is None:
        raise CorruptError(f"{plan.store.blob_path(entry.sha256)} is no group file of triton that may be restored")
    return moved


def _check_length(plan: RestorePlan, entry: ManifestEntry, length: int) -> None:
    if length != entry.size:
        origin = plan.store.manifest_path(plan.id)
        raise CorruptError(f"{origin} gives {entry.path} {entry.size} bytes where its blob has {length}: delete it")


def _appear(plan: RestorePlan, staging: Path) -> bool:
    """Put the whole directory there at once; False where another one appeared meanwhile, which is to be completed."""
    try:
        if plan.target.exists() and plan.mode is Mode.REPLACE:
            check_replaceable(plan.target)  # again: somebody may have put something there since it was planned
            exchange(staging, plan.target)  # the old directory is removed as the staging directory
        else:
            fsops.rename(staging, plan.target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        check_target(plan.target)
        if plan.mode is Mode.ABSENT:
            raise UsageError(f"{plan.target} appeared meanwhile: remove it or choose merge or replace") from error
        return False
    fsops.fsync_dir(plan.target.parent)
    return True


def _merge(plan: RestorePlan, staging: Path) -> Counter[Action]:
    """Move staged files into the target, kind by kind; counts the ADDs that another process made meanwhile."""
    lost: Counter[Action] = Counter()
    for _, group in itertools.groupby(plan.actions, key=lambda planned: planned[1].kind):
        folders: set[Path] = set()
        for action, entry in group:
            if action not in (Action.ADD, Action.REPAIR):
                continue
            folder = make_parents(plan.target, entry.path)
            destination = folder / entry.path.rpartition("/")[2]
            if action is Action.REPAIR:
                fsops.rename(staging / entry.path, destination)
            elif not _link(staging / entry.path, destination):
                lost[action] += 1
            folders.update(itertools.takewhile(lambda one: one != plan.target.parent, (folder, *folder.parents)))
        fsops.sync_tree(plan.target, (), folders)
    return lost


def _link(source: Path, destination: Path) -> bool:
    """Move ``source`` to ``destination`` unless something is there."""
    try:
        fsops.link(source, destination)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        if os.path.lexists(destination):  # a file system without hard links: a small window remains
            return False
        fsops.rename(source, destination)
    return True  # the first name goes with the staging directory
