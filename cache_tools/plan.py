"""Which snapshot to restore, and what a restore of it would do.

In: a store, a target directory, a fingerprint. Out: a ``Match`` or a ``RestorePlan``, which a dry run prints and
``restore.execute`` carries out. It reads the target and writes nothing.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable
from pathlib import Path

from cache_tools.errors import CorruptError, storage_errors
from cache_tools.fingerprint import Comparison, Fingerprint, compare
from cache_tools.keyring import open_keyring
from cache_tools.kinds import RESTORE_ORDER
from cache_tools.live import content_problem, not_being_built
from cache_tools.manifest import Manifest, ManifestEntry
from cache_tools.observe import observe
from cache_tools.relocate import is_group, roots_of, tokenise
from cache_tools.store import Store
from cache_tools.target import check_apart, check_replaceable, check_target
from cache_tools.trust import Standing, Verdict, judge, refusal, require
from envguard import atomic
from envguard.errors import UsageError
from envguard.frozen import Frozen, replace

log = logging.getLogger(__name__)


class Mode(enum.StrEnum):
    """What to do with a target that exists."""

    MERGE = "merge"
    """Add what is absent, repair what is provably broken, keep the rest."""
    REPLACE = "replace"
    """Swap the whole directory."""
    ABSENT = "absent"
    """Refuse."""


class Action(enum.StrEnum):
    """What becomes of one entry."""

    ADD = "add"
    REPAIR = "repair"
    """The file there is empty, cut, or does not hash to its name: it is replaced."""
    PRESENT = "present"
    KEEP = "keep"
    """Another file is there and may be right: it stays."""


class Match(Frozen):
    """A snapshot that may be restored here."""

    id: str
    manifest: Manifest
    comparison: Comparison


class RestorePlan(Frozen):
    """What ``execute`` would do."""

    store: Store
    id: str
    manifest: Manifest
    target: Path
    mode: Mode
    trust: Verdict
    """Untrusted only where the caller allowed it."""
    comparison: Comparison
    whole: bool
    """The directory appears at once (it is absent, or is swapped)."""
    removed: int
    """Files that go with the directory that is swapped."""
    actions: tuple[tuple[Action, ManifestEntry], ...]
    """One for each entry of the manifest, in the order of writing."""

    def count(self, action: Action) -> int:
        """Entries with that action."""
        return sum(planned is action for planned, _ in self.actions)


def best_match(
    store: Store, fingerprint: Fingerprint, compile_id: str | None, *, say: Callable[[str], None] = log.warning
) -> Match | None:
    """The newest trusted snapshot with no fatal difference and, if given, that compile id; None if there is none.

    A damaged one cannot match, and an untrusted one must not; ``say`` is told of each that was passed over.
    """
    best: Match | None = None
    for id_ in store.ids():
        try:
            found = store.read_manifest(id_)
        except CorruptError as error:
            say(str(error))
            continue
        if compile_id is not None and found.compile_id != compile_id:
            continue
        comparison = compare(found.fingerprint, fingerprint, gpu_kernels=found.gpu_kernels)
        if comparison.fatal or (best is not None and found.created <= best.manifest.created):
            continue
        if _may_be_used(store, id_, found, say):
            best = Match(id=id_, manifest=found, comparison=comparison)
    return best


def _may_be_used(store: Store, id_: str, content: Manifest, say: Callable[[str], None]) -> bool:
    try:
        verdict = judge(store, id_, content)
    except CorruptError as error:  # of the signature: somebody else's may be hidden behind the damage
        say(str(error))
        return False
    if verdict.standing is Standing.UNTRUSTED:
        say(refusal(id_, verdict))
    return verdict.standing is not Standing.UNTRUSTED


def plan_restore(
    store: Store,
    ref_or_id: str,
    target: Path,
    *,
    mode: Mode | str = Mode.MERGE,
    here: Fingerprint | None = None,
    strict: bool = False,
    allow_untrusted: bool = False,
) -> RestorePlan:
    """Plan to restore a snapshot to ``target``; ``here``: the fingerprint to judge by, by default this machine's.

    ``strict``: differences that are rarely harmful (libraries of torch, autocast) forbid a restore too.
    ``allow_untrusted`` takes a snapshot of anybody: the code in it runs as this user.

    Raises:
        UntrustedError: the snapshot is neither this user's own nor signed by a trusted key.
        UsageError: no such snapshot, or a target that is unsafe, is mixed up with the store or the trust directory,
            exists although ``mode`` is ``absent``, holds what is not of a cache although it is ``replace``,
            or holds a pipe, a folder or the like where a file belongs.
        CorruptError: the snapshot's name or manifest is damaged.
        CheckCrashed: this machine cannot be fingerprinted.
    """
    mode = Mode(mode)
    target = Path(os.path.abspath(target))
    id_ = store.resolve(ref_or_id)
    content = store.read_manifest(id_)
    check_target(target)
    check_apart(target, {"the store": store.root, "the trust directory": open_keyring().root})
    trusted = require(store, id_, content, allow_untrusted=allow_untrusted)
    if mode is Mode.ABSENT and target.exists():
        raise UsageError(f"{target} exists: remove it or choose merge or replace")
    comparison = compare(content.fingerprint, here or observe(), gpu_kernels=content.gpu_kernels, strict=strict)
    whole = mode is Mode.REPLACE or not target.exists()
    ordered = sorted(content.entries, key=lambda entry: (RESTORE_ORDER[entry.kind], entry.path))
    with storage_errors(f"reading {target}"):
        removed = check_replaceable(target) if mode is Mode.REPLACE else 0
        actions = tuple((Action.ADD if whole else _action(target, entry), entry) for entry in ordered)
    return RestorePlan(
        store=store,
        id=id_,
        manifest=content,
        target=target,
        mode=mode,
        trust=trusted,
        comparison=comparison,
        whole=whole,
        removed=removed,
        actions=actions,
    )


def completing(plan: RestorePlan) -> RestorePlan:
    """The plan for a target that was to appear at once and is there by now: file by file."""
    actions = tuple((_action(plan.target, entry), entry) for _, entry in plan.actions)
    return replace(plan, whole=False, removed=0, actions=actions)


def _action(target: Path, entry: ManifestEntry) -> Action:
    file = target / entry.path
    if not os.path.lexists(file):
        return Action.ADD
    if not file.is_file():
        raise UsageError(f"{file} is no file, and one belongs there: remove it, or restore with --replace")
    if file.is_symlink():
        return Action.KEEP
    if _is_content(target, file, entry):
        return Action.PRESENT
    with not_being_built(target, entry.path) as idle:
        broken = idle and content_problem(file, entry.path, entry.kind, deep=True)
    return Action.REPAIR if broken else Action.KEEP


def _is_content(target: Path, file: Path, entry: ManifestEntry) -> bool:
    """Whether ``file`` of ``target`` is what a restore of ``entry`` would write."""
    if is_group(entry.path):  # as a snapshot holds it: without the directory in it
        data = tokenise(file.read_bytes(), roots_of(target))
        return data is not None and atomic.sha256_bytes(data) == entry.sha256
    return file.stat().st_size == entry.size and atomic.sha256_file(file) == entry.sha256
