"""SIGKILL before every single write step of snapshot and restore, and what is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_tools.kinds import kind_of
from cache_tools.live import check_live, quarantine
from cache_tools.restore import execute, plan_restore
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, create_store, open_store
from cache_tools.verify import list_snapshots, verify_store

from . import helpers

HERE = helpers.fingerprint()
ENTRY_KINDS = {"fxgraph", "aotautograd"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache")
    return tmp_path / "cache"


def visible(root: Path) -> dict[str, bytes]:
    return {path: data for path, data in helpers.tree(root).items() if kind_of(path).value not in ("temp", "lock")}


def test_a_killed_snapshot_is_not_listed_or_verifies(cache: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    step = 0
    while True:
        step += 1
        shutil.rmtree(root, ignore_errors=True)
        killed = helpers.killed_at(step, lambda: snapshot(create_store(root), cache, name="run", fingerprint=HERE))
        survivor = create_store(root)  # whatever is left, the next run goes on
        for one in list_snapshots(survivor):
            assert one.problem is None
            assert verify_store(root, [str(one.id)]).problems == ()
        assert verify_store(root).problems == ()
        snapshot(survivor, cache, name="run", fingerprint=HERE)
        assert verify_store(root, ["run"]).problems == ()
        if not killed:
            break
    assert step > 25, "the steps of six writes, each with sync, rename and sync of the folder"


def test_a_killed_second_snapshot_leaves_the_first(store: Store, cache: Path) -> None:
    first = snapshot(store, cache, name="run", fingerprint=HERE).id
    step = 0
    while True:
        step += 1
        helpers.write(cache, "ab/cmore.main.cpp", f"// step {step}".encode())
        killed = helpers.killed_at(step, lambda: snapshot(store, cache, name="run", fingerprint=HERE))
        assert verify_store(store.root).problems == ()
        if not killed:
            break
        assert first in store.ids()
    assert step > 5


@pytest.fixture
def filled(store: Store, cache: Path) -> Store:
    snapshot(store, cache, name="run", fingerprint=HERE)
    return store


@pytest.mark.parametrize("mode", ["merge", "replace"])
def test_a_killed_restore_of_an_existing_cache(filled: Store, cache: Path, tmp_path: Path, mode: str) -> None:
    whole = visible(cache)
    old = {"zz/cold.main.cpp": b"// old"}
    step = 0
    while True:
        step += 1
        target = tmp_path / f"target{step}"
        helpers.write(target, "zz/cold.main.cpp", b"// old")
        killed = helpers.killed_at(
            step, lambda to=target: execute(plan_restore(filled, "run", to, mode=mode, here=HERE))
        )
        found = visible(target)
        if mode == "replace":
            assert found in (old, whole)
        else:
            assert found.items() <= (old | whole).items(), "every file is whole"
            if any(kind_of(path).value in ENTRY_KINDS for path in found):
                pointed_at = {path for path in whole if kind_of(path).value not in ENTRY_KINDS}
                assert pointed_at <= found.keys(), "a graph entry without the files that it names"
        execute(plan_restore(filled, "run", target, mode="merge", here=HERE))
        assert whole.items() <= visible(target).items(), "the next restore completes"
        left = [path.name for path in (*tmp_path.iterdir(), *target.iterdir()) if path.name.startswith(".tmp-")]
        assert left == [], "and removes what the killed one left"
        if not killed:
            break
    assert step > 15


def test_a_killed_restore_of_an_absent_cache_leaves_none_or_all(filled: Store, cache: Path, tmp_path: Path) -> None:
    whole = visible(cache)
    step = 0
    while True:
        step += 1
        target = tmp_path / f"target{step}"
        killed = helpers.killed_at(step, lambda to=target: execute(plan_restore(filled, "run", to, here=HERE)))
        assert not target.exists() or visible(target) == whole
        execute(plan_restore(filled, "run", target, here=HERE))
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]
        if not killed:
            break
    assert step > 15


def test_a_killed_quarantine_loses_no_good_file(cache: Path, tmp_path: Path) -> None:
    good = visible(cache)
    step = 0
    while True:
        step += 1
        helpers.write(cache, "ab/cbad.main.so", b"")
        killed = helpers.killed_at(step, lambda: quarantine(cache, check_live(cache)), plain=True)
        assert good.items() <= visible(cache).items()
        if not killed:
            break
    assert check_live(cache) == ()
    assert step > 2


def test_what_is_named_is_durable_before_its_name(store: Store, cache: Path, tmp_path: Path) -> None:
    """The order that a power loss needs, which SIGKILL cannot show. (A rename without a sync is one of a stamp.)"""

    def order(action: Callable[[], object]) -> list[str]:
        return [step for step in helpers.steps_of(action) if step in ("fsync", "syncfs", "rename")]

    durable, stamp = ["fsync", "rename", "fsync"], ["rename"]
    taken = order(lambda: snapshot(store, cache, name="run", fingerprint=HERE))
    assert taken == [*durable, *stamp, *durable, *durable, *durable, *stamp, *stamp], "pack, own, manifest, name"
    restored = order(lambda: execute(plan_restore(open_store(store.root), "run", tmp_path / "new", here=HERE)))
    files_and_folders = restored[1:-2]
    assert [*restored[:1], *restored[-2:]] == [*stamp, "rename", "fsync"]
    assert files_and_folders == ["fsync"] * len(files_and_folders)
    assert len(files_and_folders) > 5
