"""Why real torch missed: its own trace, read back and compared."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cache_tools import records
from cache_tools.coverage import coverage, snapshot_keys
from cache_tools.explain import Cause, explain_run
from cache_tools.observe import observe
from cache_tools.snapshot import snapshot
from cache_tools.stats import cache_stats, run_stats
from cache_tools.store import Store
from cache_tools.trace import Cache, Outcome, read_trace

from .conftest import Made, RunTorch

pytestmark = pytest.mark.slow


def test_a_cold_run_missed_since_the_cache_was_empty(made: Made) -> None:
    found = explain_run(made.run)
    assert [(one.lookup.cache, one.cause) for one in found.lookups] == [
        (Cache.AOT, Cause.EMPTY),
        (Cache.FX, Cause.EMPTY),
        (Cache.FX, Cause.EMPTY),
    ]
    assert found.groups[0].text == "3 graphs missed because nothing was cached"
    assert run_stats(made.run).outcomes == {"hit": 0, "miss": 1, "bypass": 0}


def test_the_trace_of_torch_tells_the_same_as_the_handler(made: Made) -> None:
    traced, kept = read_trace(made.trace), records.read_run(made.run).lookups
    assert [(one.cache, one.outcome, one.key, one.graph) for one in traced] == [
        (one.cache, one.outcome, one.key, one.graph) for one in kept
    ]
    for one, other in zip(traced, kept, strict=True):
        own = {name: part for name, part in other.components.items() if not name.startswith("functorch_config[")}
        assert dict(one.components) == own
        assert len(own) > 400
    found = explain_run(made.trace, cache_dir=made.cache_dir)
    assert {one.cause for one in found.lookups} == {Cause.EMPTY}


def test_an_entry_tells_what_its_key_was_made_of_without_being_executed(made: Made) -> None:
    for lookup in records.read_run(made.run).lookups:
        if lookup.cache is Cache.FX:
            assert lookup.key
            assert records.read_entry(made.cache_dir, lookup.key) == dict(lookup.components)


@pytest.mark.parametrize("recorded", [True, False])
def test_another_option_of_inductor_is_named(
    made: Made, run_torch: RunTorch, tmp_path: Path, recorded: bool, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue("other_option")
    keys = records.read_run(run)
    if not recorded:  # a cache that nobody recorded: torch's own entries tell of the inductor graphs
        bare = tmp_path / "bare"
        shutil.copytree(made.cache_dir, bare)
        shutil.rmtree(bare / records.FOLDER)
        found = explain_run(run, cache_dir=bare)
        causes = {(one.lookup.cache, one.cause) for one in found.lookups}
        assert causes == {(Cache.AOT, Cause.UNRECORDED), (Cache.FX, Cause.DIFFERS)}
        assert "2 graphs missed because inductor config max_autotune_pointwise differs" in found.groups[0].text
        return
    found = explain_run(run)
    assert [group.text for group in found.groups] == [
        "3 graphs missed because inductor config max_autotune_pointwise differs (cached: False, now: True)"
    ]
    nearest = {one.nearest for one in found.lookups}
    assert nearest == {lookup.key for lookup in records.read_run(made.run).lookups}, "forward beside forward"
    assert keys.present[Cache.AOT]


@pytest.fixture(scope="module")
def other_option(made: Made, run_torch: RunTorch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over a copy of the cache, under one other option."""
    root = tmp_path_factory.mktemp("option")
    shutil.copytree(made.cache_dir, root / "cache")
    result = run_torch(root / "cache", run=str(root / "run"), inductor={"max_autotune_pointwise": True})
    assert (result["hits"], result["misses"], result["fx_misses"]) == (0, 1, 2)
    return root / "run"


def test_what_a_snapshot_has_and_the_cache_lost(made: Made, other_option: Path, store: Store) -> None:
    snapshot(store, other_option.parent / "cache", name="kept", fingerprint=observe())
    used = records.read_run(other_option).used
    bare = coverage(made.cache_dir, used)
    assert bare.used - bare.present > 0, "the new graphs are not in the first cache"
    assert coverage(other_option.parent / "cache", used).complete
    [entry] = {store.read_manifest(id_).created for id_ in store.ids()}
    assert snapshot_keys(store, before=datetime.fromisoformat(entry)) == {}, "what came later, no run could use"
    found = explain_run(made.run, snapshots=snapshot_keys(store, before=datetime.now(UTC)))
    assert {one.cause for one in found.lookups} == {Cause.LOST}
    assert "snapshot kept has them, restore it" in found.groups[0].text


def test_a_warm_run_hits_and_tells_what_it_saved(made: Made, run_torch: RunTorch, tmp_path: Path) -> None:
    cache = tmp_path / "elsewhere"
    shutil.copytree(made.cache_dir, cache)
    warm = run_torch(cache, run=str(tmp_path / "run"))
    assert (warm["hits"], warm["misses"], warm["fx_hits"], warm["fx_misses"]) == (1, 0, 2, 0)
    stats = run_stats(tmp_path / "run")
    assert (stats.outcomes["hit"], stats.fx["hit"]) == (1, 2)
    assert stats.saved_seconds == warm["saved"] > 0.1
    found = explain_run(tmp_path / "run")
    assert [group.outcome for group in found.groups] == [Outcome.HIT]
    figures = cache_stats(cache)
    assert (figures.graphs, figures.duplicates) == ({"aotautograd": 1, "fxgraph": 2}, 0)
    built = list(cache.rglob("*.so"))  # with AVX-512 torch also tries what the compiler can do, in here
    assert figures.kinds["native"].files == len(built) >= 2
    assert len(list((cache / records.FOLDER).iterdir())) == 1, "nothing new, nothing written"


def test_the_order_of_imports_is_in_the_keys_of_torch_and_is_told(
    made: Made, run_torch: RunTorch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(made.cache_dir, cache)
    early = run_torch(cache, run=str(tmp_path / "early"), early=True)
    assert (early["hits"], early["misses"]) == (0, 1), "nothing but a module in sys.modules is different"
    texts = [group.text for group in explain_run(tmp_path / "early").groups]
    assert all("imports modules in another order" in text for text in texts), texts
    stable = run_torch(cache, stable=True)
    assert (stable["hits"], stable["misses"]) == (0, 1), "other keys, once"
    again = run_torch(cache, stable=True, early=True)
    assert (again["hits"], again["misses"], again["fx_misses"]) == (1, 0, 0)
    assert again["loss"] == made.result["loss"]
