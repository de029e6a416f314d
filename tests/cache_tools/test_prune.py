"""What prune removes, what it keeps and why, and that nobody who is at work loses anything."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from cache_tools import blobs, lease, stamps
from cache_tools.errors import CorruptError, StorageError
from cache_tools.packs import PackWriter
from cache_tools.pins import pin, unpin
from cache_tools.prune import execute
from cache_tools.prune_plan import PrunePlan, Rules, plan_prune
from cache_tools.restore import execute as restore
from cache_tools.restore import plan_restore
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, open_store
from cache_tools.verify import verify_store
from envguard.errors import UsageError

from . import helpers

HERE = helpers.fingerprint()
OLD = time.time() - 10 * 86400


@pytest.fixture
def three(store: Store, tmp_path: Path) -> list[str]:
    """Three snapshots of a cache that grows and forgets; ids, the oldest first."""
    ids = []
    for number in range(3):
        cache = tmp_path / f"cache{number}"
        helpers.make_cache(cache)
        helpers.write(cache, f"ab/cbig{number}.main.cpp", os.urandom(20_000))
        ids.append(snapshot(store, cache, name=f"run{number}", fingerprint=HERE).id)
        time.sleep(0.002)
    return ids


def removed(plan: PrunePlan) -> set[str]:
    return {one.id for one in plan.removed}


def age(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path, (when, when))


def test_without_a_rule_every_snapshot_stays(store: Store, three: list[str]) -> None:
    plan = plan_prune(store, Rules())
    assert removed(plan) == set()
    assert {one.keep for one in plan.snapshots} == {("no rule removes it",)}
    assert execute(plan).snapshots == 0
    assert store.ids() == tuple(sorted(three))


def test_keep_last_removes_snapshots_names_and_space(store: Store, three: list[str], tmp_path: Path) -> None:
    before = sum(pack.stat().st_size for pack in helpers.packs(store.root))
    plan = plan_prune(store, Rules(keep_last=1))
    assert removed(plan) == set(three[:2])
    assert store.ids() == tuple(sorted(three)), "a plan removes nothing"
    done = execute(plan)
    assert (done.snapshots, store.ids(), store.names()) == (2, (three[2],), ("run2",))
    after = sum(pack.stat().st_size for pack in helpers.packs(store.root))
    assert before - after > 40_000
    assert abs(plan.bytes_freed - done.bytes_freed) < 10
    assert verify_store(store.root).problems == ()
    restore(plan_restore(open_store(store.root), "run2", tmp_path / "new", here=HERE))
    assert helpers.tree(tmp_path / "new").items() <= helpers.tree(tmp_path / "cache2").items()


def test_recency_is_the_last_use_not_the_making(store: Store, three: list[str], tmp_path: Path) -> None:
    restore(plan_restore(store, three[0], tmp_path / "new", here=HERE))
    assert removed(plan_prune(store, Rules(keep_last=1))) == set(three[1:])
    for id_ in three:  # a lost stamp: the time of making counts
        stamps.use_stamp(store.root, id_).unlink()
    assert removed(plan_prune(store, Rules(keep_last=1))) == set(three[:2])


def test_keep_within_counts_seconds(store: Store, three: list[str]) -> None:
    assert removed(plan_prune(store, Rules(keep_within=3600))) == set()
    assert removed(plan_prune(store, Rules(keep_within=0))) == set(three)


def test_max_size_keeps_the_most_recently_used_that_fit(store: Store, three: list[str]) -> None:
    sizes = {one.id: one.bytes for one in plan_prune(store, Rules()).snapshots}
    assert removed(plan_prune(store, Rules(max_size=sum(sizes.values())))) == set()
    assert removed(plan_prune(store, Rules(max_size=sizes[three[2]] + sizes[three[1]]))) == {three[0]}
    assert removed(plan_prune(store, Rules(max_size=0))) == set(three)
    plan = plan_prune(store, Rules(max_size=10, keep_last=1))
    assert removed(plan) == set(three[:2])
    assert plan.problem is not None
    assert "although 10 are allowed" in plan.problem
    execute(plan_prune(store, Rules(max_size=sizes[three[2]] + 1000)))
    on_disk = sum(path.stat().st_size for folder in ("blobs", "snapshots") for path in (store.root / folder).iterdir())
    assert on_disk < sizes[three[2]] + 2000


def test_a_pin_outweighs_every_rule_until_it_is_removed(store: Store, three: list[str]) -> None:
    pin(store, "run0")
    assert removed(plan_prune(store, Rules(keep_last=0))) == set(three[1:])
    assert verify_store(store.root).problems == ()
    unpin(store, three[0][:8])
    assert removed(plan_prune(store, Rules(keep_last=0))) == set(three)


def test_a_snapshot_in_use_stays_even_if_the_use_began_after_the_plan(store: Store, three: list[str]) -> None:
    plan = plan_prune(store, Rules(keep_last=1))
    with lease.using(store.root, three[0]):
        assert execute(plan).snapshots == 1
        assert store.ids() == tuple(sorted((three[0], three[2])))
        (kept,) = (one for one in plan_prune(store, Rules(keep_last=1)).snapshots if one.id == three[0])
        assert kept.keep == (f"in use by process {os.getpid()} on {os.uname().nodename}",)
    assert execute(plan_prune(store, Rules(keep_last=1))).snapshots == 1


def test_what_a_plan_did_not_name_is_not_removed(store: Store, three: list[str], tmp_path: Path) -> None:
    plan = plan_prune(store, Rules(keep_last=2))
    restore(plan_restore(store, three[0], tmp_path / "new", here=HERE))  # now another one is the least recently used
    assert execute(plan).snapshots == 0
    assert store.ids() == tuple(sorted(three))


def test_leavings_of_killed_writers_go_after_the_grace_period(store: Store, three: list[str], tmp_path: Path) -> None:
    orphan = tmp_path / "orphan"
    helpers.write(orphan, "ab/corphan.main.cpp", b"// no manifest names this")
    packs = set(helpers.packs(store.root))
    id_ = snapshot(store, orphan, name="orphan", fingerprint=HERE).id
    (pack,) = set(helpers.packs(store.root)) - packs
    store.ref_path("orphan").unlink()
    store.manifest_path(id_).unlink()
    left = [store.root / folder / ".tmp-0123" for folder in ("blobs", "snapshots", "refs", "leases")]
    signature = store.root / "snapshots" / f"{id_}.sig"
    for path in (*left, signature):
        path.write_bytes(b"half")
    assert execute(plan_prune(store, Rules())).packs == 0
    assert all(path.exists() for path in (*left, signature, pack))
    for path in (*left, signature, pack):
        age(path, 7200)
    execute(plan_prune(store, Rules()))
    assert not any(path.exists() for path in (*left, signature, pack))
    assert verify_store(store.root).problems == ()


def test_a_signature_goes_with_its_manifest(store: Store, three: list[str]) -> None:
    signature = store.root / "snapshots" / f"{three[0]}.sig"
    signature.write_bytes(b"signed")
    execute(plan_prune(store, Rules(keep_last=2)))
    assert not signature.exists()


def test_an_unreadable_manifest_stops_it(store: Store, three: list[str]) -> None:
    helpers.flip(store.manifest_path(three[0]), 80)
    with pytest.raises(CorruptError, match=three[0]):
        plan_prune(store, Rules(keep_last=1))


def test_a_damaged_blob_that_should_move_stays_where_it_is_and_is_named(store: Store, three: list[str]) -> None:
    pin(store, three[0])
    first = store.read_manifest(three[0])
    keeper = min(first.entries, key=lambda entry: entry.size)
    pack = store.blob_path(keeper.sha256)
    place = store.index.places[bytes.fromhex(keeper.sha256)]
    unpin(store, three[0])
    helpers.flip(pack, 8 * place.offset + 3)
    with pytest.raises(CorruptError, match=pack.name):
        execute(plan_prune(open_store(store.root), Rules(keep_last=1)))
    assert pack.exists()
    assert [problem.path for problem in verify_store(store.root).problems] == [f"blobs/{pack.name}"]


def test_a_reader_survives_that_packs_are_written_anew(store: Store, three: list[str], tmp_path: Path) -> None:
    reader = open_store(store.root)
    plan = plan_restore(reader, "run2", tmp_path / "new", here=HERE)
    assert reader.index.places
    assert execute(plan_prune(store, Rules(keep_last=1))).packs > 0
    assert restore(plan).added == len(plan.actions)


def test_a_restore_of_what_was_pruned_says_so(store: Store, three: list[str], tmp_path: Path) -> None:
    plan = plan_restore(open_store(store.root), "run0", tmp_path / "new", here=HERE)
    execute(plan_prune(store, Rules(keep_last=1)))
    with pytest.raises(UsageError, match="was pruned a moment ago"):
        restore(plan)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rules", [Rules(keep_last=-1), Rules(max_size=-5), Rules(keep_within=-1.0)])
def test_negative_rules_are_refused(store: Store, rules: Rules) -> None:
    with pytest.raises(UsageError, match="negative"):
        plan_prune(store, rules)


def test_a_writer_at_work_is_waited_for(store: Store, three: list[str]) -> None:
    with lease.writing(store.root), pytest.raises(StorageError, match=r"in use|written to"):
        lease.pruning(store.root, patience=0.1).__enter__()
    assert lease.alive(store.root) == ()


def test_a_prune_that_is_killed_anywhere_loses_nothing(store: Store, three: list[str], tmp_path: Path) -> None:
    """Every step once: what is listed verifies, what should stay stays, and the next prune finishes."""
    saved = tmp_path / "saved"
    shutil.copytree(store.root, saved)
    step = 0
    while True:
        step += 1
        shutil.rmtree(store.root)
        shutil.copytree(saved, store.root)

        def prune() -> None:
            vault = open_store(store.root)
            execute(plan_prune(vault, Rules(keep_last=1)))

        killed = helpers.killed_at(step, prune)
        assert verify_store(store.root).problems == (), f"step {step}"
        left = open_store(store.root)
        assert three[2] in left.ids()
        assert left.read_ref("run2") == three[2]
        prune()
        assert open_store(store.root).ids() == (three[2],)
        assert verify_store(store.root).problems == ()
        assert [path for path in (store.root / "leases").iterdir() if path.suffix == ".lock"] == []
        if not killed:
            break
    assert step > 20


def test_of_two_copies_the_intact_one_stays(store: Store, tmp_path: Path) -> None:
    """Two writers that race leave a blob in two packs; then one rots."""
    helpers.write(tmp_path / "cache", helpers.SOURCE_CPP, os.urandom(20_000))
    first = snapshot(store, tmp_path / "cache", name="one", fingerprint=HERE)
    (entry,) = store.read_manifest(first.id).entries
    data = store.read_blob(entry.sha256, limit=entry.size)
    for number in range(8):  # names of packs are digests: which of two is looked at first is a matter of luck
        writer = PackWriter(store.root / "blobs")
        writer.add(bytes.fromhex(entry.sha256), blobs.compressor().compress(data), len(data))
        other = b"dead %d" % number
        writer.add(hashlib.sha256(other).digest(), blobs.compressor().compress(other), len(other))
        writer.seal()
    copies = helpers.packs(store.root)
    for pack in copies[1:]:
        helpers.flip(pack, 8_000)
    execute(plan_prune(open_store(store.root), Rules(grace=-10)))
    assert open_store(store.root).read_blob(entry.sha256, limit=entry.size) == data
    assert verify_store(store.root).problems == ()


def test_a_moment_that_is_none_is_damage(store: Store, three: list[str]) -> None:
    data = store.manifest_bytes(three[0])
    at = data.index(b'"created":"') + 11
    forged = data[:at] + b"2026-99-99" + data[at + 10 :]
    store.manifest_path(hashlib.sha256(forged).hexdigest()).write_bytes(forged)
    with pytest.raises(CorruptError, match="no moment"):
        plan_prune(store, Rules(keep_last=1))


def test_a_plan_survives_that_another_process_prunes(
    store: Store, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = stamps.last_use, [1]

    def pruned_meanwhile(root: Path, id_: str) -> int:
        if left[0]:
            left[0] = 0
            execute(plan_prune(open_store(root), Rules(keep_last=1, grace=0)))
        return real(root, id_)

    monkeypatch.setattr(stamps, "last_use", pruned_meanwhile)
    plan = plan_prune(store, Rules(keep_last=1))
    assert [one.id for one in plan.snapshots] == [three[2]]
