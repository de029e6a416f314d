"""What a training run does with the store before torch is imported: it takes only what is trusted, and says so."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from cache_tools.errors import StorageError
from cache_tools.observe import observe
from cache_tools.snapshot import snapshot
from cache_tools.store import create_store
from dflash.compile.cache import CacheState, keep_entries, open_cache

from ..cache_tools import helpers

COMPILE_ID = "two-layers"


def opened(place: Path, compile_id: str = COMPILE_ID) -> CacheState:
    with contextlib.ExitStack() as held:
        return open_cache(str(place / "store"), compile_id, held)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with a snapshot that fits this machine, made by this user."""
    helpers.make_cache(tmp_path / "made")
    store = create_store(tmp_path / "store")
    snapshot(store, tmp_path / "made", name="run", fingerprint=observe(), compile_id=COMPILE_ID)
    return tmp_path


def test_ones_own_is_restored(place: Path) -> None:
    state = opened(place)
    assert state.match is not None
    assert state.files_added == 5


def test_anothers_is_passed_over_and_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DFLASH_CACHE_TRUST", str(place / "somebody-else"))
    state = opened(place)
    assert (state.match, state.files_added) == (None, 0)
    assert not any(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*"))
    said = capsys.readouterr().err
    assert f"cache: passed over: snapshot {state.store.resolve('run')[:12]} is not trusted: " in said
    helpers.make_cache(state.directory)
    used = frozenset({helpers.NATIVE, helpers.SOURCE_CPP})
    keep_entries(state, used, told={}, build_ms=None)
    again = opened(place)
    assert again.match is not None, "what this run compiled is its own"


def test_a_place_where_nothing_can_be_recorded_is_told_before_any_work(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers.write(place, "file", b"")
    monkeypatch.setenv("DFLASH_CACHE_TRUST", str(place / "file" / "trust"))
    with pytest.raises(StorageError, match="set DFLASH_CACHE_TRUST"):
        opened(place)


def test_secrets_in_what_a_run_compiled_are_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = opened(place, "another")
    entry = b"os.environ['MY_TORCH_TOKEN'] = 'hunter2secret'\n"
    path = helpers.write(state.directory, f"fxgraph/ab/fabkey/{helpers.b32(entry)}", entry)
    assert keep_entries(state, frozenset({path}), told={}, build_ms=None)
    said = capsys.readouterr().err
    assert "(MY_TORCH_TOKEN); do not share the snapshot" in said
    assert "hunter2secret" not in said
