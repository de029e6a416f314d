"""A disk that fills up during snapshot, restore and prune: a real small tmpfs, the commands as processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tools.store import open_store
from cache_tools.verify import verify_store

from . import helpers


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    with helpers.tmpfs(tmp_path / "small", 2048) as where:
        yield where


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "cache_tools", *arguments], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done


def full(done: subprocess.CompletedProcess[str]) -> None:
    """Exit 1 and one line that says what was being done and why it ended."""
    assert done.returncode == 1, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith(("left out", "degrading")))
    assert line.startswith("error: ")
    assert "No space left on device; free some space, or choose another place" in line
    assert ".tmp-" not in line


def leave_free(where: Path, size: int) -> Path:
    """Fill ``where`` until ``size`` bytes are free."""
    filler = where / "filler"
    free = shutil.disk_usage(where).free - size
    filler.write_bytes(bytes(max(0, free)))
    return filler


@pytest.mark.parametrize("free_kb", [0, 8, 40, 200, 600])
def test_a_snapshot_on_a_full_disk_loses_nothing(small: Path, tmp_path: Path, free_kb: int) -> None:
    cache, store = tmp_path / "cache", small / "store"
    helpers.make_cache(cache)
    assert run("snapshot", str(cache), "--name", "run", "--store", str(store)).returncode == 0
    first = open_store(store).ids()
    for number in range(40):
        helpers.write(cache, f"ab/c{number}.main.cpp", os.urandom(20_000))
    filler = leave_free(small, free_kb << 10)
    full(run("snapshot", str(cache), "--name", "run", "--store", str(store)))
    assert open_store(store).ids() == first
    assert verify_store(store).problems == ()
    assert not list((store / "blobs").glob(".tmp-*")), "what was written half is removed at once"
    filler.unlink()
    assert run("snapshot", str(cache), "--name", "run", "--store", str(store)).returncode == 0
    assert len(open_store(store).ids()) == 2
    assert verify_store(store).problems == ()


@pytest.mark.parametrize("mode", ["--merge", "--replace"])
@pytest.mark.parametrize("free_kb", [0, 8, 120, 500])
def test_a_restore_to_a_full_disk_leaves_what_was_there(small: Path, tmp_path: Path, free_kb: int, mode: str) -> None:
    cache, store, target = tmp_path / "cache", tmp_path / "store", small / "target"
    helpers.make_cache(cache)
    for number in range(40):
        helpers.write(cache, f"ab/c{number}.main.cpp", os.urandom(20_000))
    assert run("snapshot", str(cache), "--name", "run", "--store", str(store)).returncode == 0
    helpers.write(target, f"zz/c{'mine' * 13}.main.cpp", b"// mine")
    filler = leave_free(small, free_kb << 10)
    before = helpers.tree(target)
    full(run("restore", "run", "--to", str(target), mode, "--store", str(store)))
    assert helpers.tree(target) == before
    assert sorted(path.name for path in (*small.iterdir(), *target.iterdir())) == ["filler", "target", "zz"]
    filler.unlink()
    assert run("restore", "run", "--to", str(target), mode, "--store", str(store)).returncode == 0
    restored = helpers.tree(target).items()
    assert {item for item in helpers.tree(cache).items() if item[0].startswith("ab/")} <= restored


@pytest.mark.parametrize("one_program", [True, False])
def test_a_prune_on_a_full_disk_frees_space(small: Path, tmp_path: Path, one_program: bool) -> None:
    """Whole packs can go without any room; where a pack must be written anew, what was freed before may do."""
    cache, store = tmp_path / "cache", small / "store"
    for number in range(3):
        shutil.rmtree(cache, ignore_errors=True)
        if one_program:
            helpers.make_cache(cache)
        helpers.write(cache, f"ab/c{number}.main.cpp", os.urandom(200_000))
        assert run("snapshot", str(cache), "--name", f"run{number}", "--store", str(store)).returncode == 0
    leave_free(small, 0)
    assert shutil.disk_usage(small).free == 0
    done = run("prune", "--keep-last", "1", "--store", str(store))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(open_store(store).ids()) == 1
    assert shutil.disk_usage(small).free > 300_000
    assert verify_store(store).problems == ()
