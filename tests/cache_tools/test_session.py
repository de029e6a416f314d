"""``restored`` around real torch programs, and the traps that torch's own keys leave open."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import cache_tools
from cache_tools.errors import IncompatibleError
from cache_tools.observe import observe
from cache_tools.plan import plan_restore
from cache_tools.restore import execute
from cache_tools.scan import scan
from cache_tools.session import check_not_fixed
from cache_tools.snapshot import snapshot
from cache_tools.store import Store
from envguard.errors import UsageError

from . import helpers
from .conftest import Made, RunTorch


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may have imported torch for other tests, and ``restored`` asks for that."""
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
def test_first_start_keeps_second_hits_elsewhere_and_only_what_was_used_is_kept(
    run_torch: RunTorch, store: Store, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    helpers.make_cache(first)  # somebody else's entries
    session = {"store": str(store.root), "ref": "tiny", "keep": "tiny"}
    cold = run_torch(first, session=session)
    assert (cold["hits"], cold["misses"], cold["restored"]) == (0, 1, False)
    (text,) = cold["texts"]
    assert text.startswith("3 graphs missed because no cached entry has their keys (what")
    held = {entry.path for entry in store.read_manifest(cold["kept"]["id"]).entries}
    assert held < {entry.path for entry in scan(first).entries}
    assert not held & {helpers.NATIVE, helpers.SOURCE_CPP}
    shutil.rmtree(first)
    second = {**session, "cache_dir": str(tmp_path / "second")}
    warm = run_torch(first, session=second)
    assert (warm["hits"], warm["misses"], warm["fx_hits"], warm["fx_misses"]) == (1, 0, 2, 0)
    assert (warm["loss"], warm["grad"], warm["restored"]) == (cold["loss"], cold["grad"], True)
    assert warm["kept"]["new"] is False
    assert not first.exists()
    assert store.read_manifest(cold["kept"]["id"]).fingerprint.values["autocast"] == "off"


@pytest.mark.slow
def test_the_autocast_trap_is_real_and_is_told(run_torch: RunTorch, store: Store, tmp_path: Path) -> None:
    session = {"store": str(store.root), "ref": "amp", "keep": "amp", "autocast": "cpu bfloat16"}
    made = run_torch(tmp_path / "cache", session=session, autocast="bfloat16", product=True)
    assert made["product"] == "torch.bfloat16"
    values = store.read_manifest(made["kept"]["id"]).fingerprint.values
    assert values["autocast"] == "cpu bfloat16"
    trap = run_torch(tmp_path / "cache", autocast="float16", product=True)
    assert (trap["misses"], trap["product"]) == (0, "torch.bfloat16"), "torch 2.11 hits, and gives the other dtype"
    half = observe().with_told({"autocast": "cpu float16"})
    plan = plan_restore(store, "amp", tmp_path / "new", here=half)
    told = {field.name: field.here for field in plan.comparison.degrading}
    told.pop("inductor_env")  # the child trusts the vector ISA, this process does not
    assert told == {"autocast": "cpu float16"}
    strict = plan_restore(store, "amp", tmp_path / "new", here=half, strict=True)
    with pytest.raises(IncompatibleError, match="results in the other dtype"):
        execute(strict)
    with pytest.raises(IncompatibleError), cache_tools.restored(store, "amp", strict=True, autocast="cpu float16"):
        raise AssertionError("the block must not run")
    nobody = plan_restore(store, "amp", tmp_path / "new").comparison
    assert "autocast" not in {field.name for field in nobody.degrading}, "unknown is no difference"


def test_a_degrading_difference_is_logged(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    helpers.make_cache(tmp_path / "cache")
    told = observe().with_told({"autocast": "cpu bfloat16"})
    snapshot(store, tmp_path / "cache", name="amp", fingerprint=told)
    caplog.set_level(logging.WARNING)
    with cache_tools.restored(store, "amp", cache_dir=tmp_path / "new", autocast="off") as session:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "new")
        assert session.restored
        assert session.restored.added == 5
    assert "autocast" in caplog.text
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != str(tmp_path / "new"), "put back: torch was not imported"


def test_a_directory_that_torch_has_fixed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "fixed"))
    check_not_fixed(tmp_path / "other")
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", types.ModuleType("stand-in"))
    check_not_fixed(tmp_path / "fixed")
    with pytest.raises(UsageError, match=r"fixed already .*set TORCHINDUCTOR_CACHE_DIR="):
        check_not_fixed(tmp_path / "other")


@pytest.mark.slow
def test_real_torch_fixes_its_directory_and_is_refused(store: Store, tmp_path: Path) -> None:
    code = (
        "import sys, torch, torch._dynamo, cache_tools\n"
        f"with cache_tools.restored({str(store.root)!r}, 'x', cache_dir={str(tmp_path / 'other')!r}, keep='x'): pass"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "UsageError: torch uses" in done.stderr.splitlines()[-1]


def test_a_missing_snapshot_is_an_error_unless_one_is_to_be_kept(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no snapshot 'nope'"), cache_tools.restored(store, "nope"):
        pass
    with cache_tools.restored(store, "nope", keep="nope", cache_dir=tmp_path / "new") as session:
        pass
    assert (session.restored, session.kept) == (None, None)
    assert store.names() == ()


def test_a_mistyped_store_is_an_error_and_makes_none(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="is not a cache store"),
        cache_tools.restored(tmp_path / "typo", "run", cache_dir=tmp_path / "new"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_the_cache_is_refused_before_the_work(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with (
        pytest.raises(UsageError, match="lies in the cache"),
        cache_tools.restored(cache / "store", "run", cache_dir=cache, keep="run"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_keeps_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), cache_tools.restored(store, "x", keep="x", cache_dir=tmp_path / "new"):
        raise RuntimeError
    assert store.names() == ()


@pytest.mark.slow
def test_another_vector_isa_is_refused_before_torch_could_hit(made: Made, store: Store, tmp_path: Path) -> None:
    snapshot(store, made.cache_dir, name="wide", fingerprint=observe())
    target = tmp_path / "new"
    command = [sys.executable, "-m", "cache_tools", "restore", "wide", "--to", str(target), "--store", str(store.root)]
    done = subprocess.run(
        [*command, "--json"], env=os.environ | {"ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True
    )
    assert done.returncode == 4
    differences: list[dict[str, Any]] = json.loads(done.stdout)["differences"]
    assert {"cpu_isa", "cpu_isa_flags"} <= {one["name"] for one in differences if one["verdict"] == "fatal"}
    assert not target.exists()
