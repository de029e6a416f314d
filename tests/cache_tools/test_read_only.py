"""A cache on a read-only mount: torch dies there even where everything hits, and we say so before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_tools.observe import observe
from cache_tools.snapshot import snapshot
from cache_tools.store import Store

from . import helpers
from .conftest import PROGRAM, Made


def mounted(cache: Path, command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a mount namespace of its own, where ``cache`` is bound read-only."""
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    return subprocess.run(
        [*own, "bash", "-c", script, str(cache), *command],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_verify_restore_and_doctor_say_what_torch_would_do(store: Store, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    helpers.make_cache(cache)
    snapshot(store, cache, name="run", fingerprint=observe())
    tool = [sys.executable, "-m", "cache_tools"]
    checked = mounted(cache, [*tool, "verify", "--live", str(cache), "--json"])
    assert checked.returncode == 0, checked.stderr
    (note,) = json.loads(checked.stdout)["live"]["notes"]
    assert note["id"] == "read-only"
    assert "OSError 30 (Read-only file system)" in note["message"]
    assert "restore a snapshot into a directory that can be written" in checked.stderr
    refused = mounted(cache, [*tool, "restore", "run", "--to", str(cache), "--store", str(store.root)])
    assert refused.returncode == 1
    assert "OSError 30" in refused.stderr
    told = mounted(
        cache, [sys.executable, "-m", "dflash.cli.entry", "doctor", "--json"], TORCHINDUCTOR_CACHE_DIR=str(cache)
    )
    findings = {finding["id"]: finding["message"] for finding in json.loads(told.stdout)["findings"]}
    assert "OSError 30" in findings["DFL002"]
    assert "read-only" not in mounted(tmp_path / "store", [*tool, "verify", "--live", str(cache)]).stderr


def test_a_read_only_store_is_not_told_about_torch(store: Store, tmp_path: Path) -> None:
    helpers.make_cache(tmp_path / "cache")
    snapshot(store, tmp_path / "cache", name="run", fingerprint=observe())
    tool = [sys.executable, "-m", "cache_tools"]
    choose, copy = "choose a directory that can be written", "work on a copy of the store that can be written"
    for arguments, advice in ((["snapshot", str(tmp_path / "cache"), "--name", "new"], choose), (["pin", "run"], copy)):
        done = mounted(store.root, [*tool, *arguments, "--store", str(store.root)])
        assert done.returncode == 1
        assert f"Read-only file system; {advice}" in done.stderr
        assert "torch.compile" not in done.stderr


@pytest.mark.slow
def test_torch_itself_dies_there(made: Made) -> None:
    done = mounted(
        made.cache_dir,
        [sys.executable, str(PROGRAM)],
        TORCHINDUCTOR_CACHE_DIR=str(made.cache_dir),
        TORCHINDUCTOR_VEC_ISA_OK="1",
    )
    assert done.returncode == 1
    assert "[Errno 30] Read-only file system" in done.stderr
