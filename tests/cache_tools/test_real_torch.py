"""A cache that torch itself made: kept, lost, put back, moved, poisoned."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cache_tools.live import check_live, quarantine
from cache_tools.observe import observe
from cache_tools.restore import execute, plan_restore
from cache_tools.scan import scan
from cache_tools.snapshot import snapshot
from cache_tools.store import Store

from .conftest import RunTorch

pytestmark = pytest.mark.slow
TorchCache = tuple[Path, dict[str, Any]]


def test_every_file_of_a_real_cache_has_a_kind_and_a_matching_name(torch_cache: TorchCache) -> None:
    cache_dir, _ = torch_cache
    kinds = {entry.kind.value for entry in scan(cache_dir).entries}
    assert kinds == {"fxgraph", "aotautograd", "source", "native", "keys"}
    assert check_live(cache_dir, deep=True) == ()


def test_a_lost_cache_comes_back_with_every_hit_and_also_elsewhere(
    torch_cache: TorchCache, run_torch: RunTorch, store: Store, tmp_path: Path
) -> None:
    cache_dir, cold = torch_cache
    assert (cold["hits"], cold["misses"]) == (0, 1)
    here = observe()
    taken = snapshot(store, cache_dir, name="tiny", fingerprint=here)
    assert taken.skipped.keys() <= {"lock"}
    lost = tmp_path / "lost"
    cache_dir.rename(lost)
    try:
        for target in (cache_dir, tmp_path / "other" / "place"):
            execute(plan_restore(store, "tiny", target, mode="absent", here=here))
            before = {entry.path for entry in scan(target).entries}
            warm = run_torch(target)
            assert (warm["hits"], warm["misses"], warm["fx_misses"]) == (1, 0, 0)
            assert (warm["loss"], warm["grad"]) == (cold["loss"], cold["grad"])
            assert {entry.path for entry in scan(target).entries} == before, "something was built again"
    finally:
        shutil.rmtree(cache_dir, ignore_errors=True)
        lost.rename(cache_dir)


def test_a_shared_object_whose_linker_was_killed_is_moved_aside_and_torch_recovers(
    torch_cache: TorchCache, run_torch: RunTorch, tmp_path: Path
) -> None:
    cache_dir, cold = torch_cache
    poisoned = tmp_path / "poisoned"
    shutil.copytree(cache_dir, poisoned)
    victim = next(entry.path for entry in scan(cache_dir).entries if entry.path.endswith(".so"))
    (poisoned / victim).write_bytes(b"")
    bad = check_live(poisoned)
    assert [file.path for file in bad] == [victim]
    assert [file.path for file in quarantine(poisoned, bad).moved] == [victim]
    healed = run_torch(poisoned)
    assert (healed["misses"], healed["loss"]) == (0, cold["loss"])
    assert (poisoned / victim).stat().st_size > 0
