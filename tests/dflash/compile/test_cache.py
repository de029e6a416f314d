"""What a run does with the cache before torch is imported: coverage, restore, refusal, a damaged snapshot."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from cache_tools.observe import observe
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, create_store
from dflash.compile.cache import CacheState, keep_entries, open_cache
from tests.cache_tools import helpers

ID = "c" * 32


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The directory that the environment names, filled."""
    helpers.make_cache(tmp_path / "inductor")
    return tmp_path / "inductor"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path / "cache-store")


def keep(store: Store, cache: Path, **told: str | None) -> str:
    fingerprint = observe().with_told({"autocast": "off", **told})
    return snapshot(store, cache, name="train", fingerprint=fingerprint, compile_id=ID).id


def opened(store: Store) -> CacheState:
    with contextlib.ExitStack() as held:
        return open_cache(str(store.root), ID, held)


def test_what_is_missing_is_told_before_it_is_restored(
    store: Store, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id_ = keep(store, cache)
    shutil.rmtree(cache / "aotautograd")
    (cache / helpers.NATIVE).write_bytes(b"")
    state = opened(store)
    assert state.restore.outcome == "restored"
    assert state.match is not None
    assert (state.match.id, state.files_added) == (id_, 2)
    told = capsys.readouterr().err
    assert "this cache holds 3 of the 5 entries that the last run used" in told
    opened(store)
    assert "this cache holds" not in capsys.readouterr().err, "complete: nothing to tell"


def test_no_snapshot_is_no_event(store: Store, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = opened(store)
    assert (state.restore.outcome, state.restore.reason, state.match) == ("none", None, None)
    assert capsys.readouterr().err == ""


def test_a_snapshot_for_another_machine_is_refused_with_its_reason(
    store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, cache)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    state = opened(store)
    assert (state.restore.outcome, state.match) == ("refused", None)
    assert state.restore.reason
    assert "cpu_isa" in state.restore.reason
    assert "is for these graphs and not restored" in capsys.readouterr().err


def test_another_autocast_is_warned_of(store: Store, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(store, cache, autocast="cpu bfloat16")
    assert opened(store).restore.outcome == "restored"
    assert "degrading: autocast was 'cpu bfloat16', is 'off'" in capsys.readouterr().err


def test_a_damaged_snapshot_costs_a_compilation_and_is_counted(
    store: Store, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, cache)
    shutil.rmtree(cache)
    manifests = {store.root / "snapshots", store.root / "refs"}
    content = [path for path in store.root.rglob("*") if path.is_file() and not manifests & set(path.parents)]
    for file in (path for path in content if path.parent != store.root):
        file.chmod(0o600)
        file.write_bytes(file.read_bytes()[:-1])
    state = opened(store)
    assert (state.restore.outcome, state.match) == ("error", None)
    assert state.restore.reason
    assert "damaged" in state.restore.reason
    assert "its graphs are compiled" in capsys.readouterr().err


def test_what_torch_told_goes_into_the_snapshot(store: Store, cache: Path) -> None:
    state = opened(store)
    told = {"autocast": "off", "inductor_config": "0123"}
    id_ = keep_entries(state, frozenset({helpers.NATIVE}), told=told, build_ms=5)
    assert id_
    content = store.read_manifest(id_)
    assert content.fingerprint.values["inductor_config"] == "0123"
    assert [entry.path for entry in content.entries] == [helpers.NATIVE]
