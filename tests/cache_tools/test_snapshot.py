"""What a snapshot takes from a cache that lives."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from cache_tools import filereader as module
from cache_tools.errors import StorageError
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, create_store
from envguard.errors import UsageError

from . import helpers

HERE = helpers.fingerprint()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache", triton=True)
    return tmp_path / "cache"


def paths(store: Store, name: str) -> list[str]:
    return [entry.path for entry in store.read_manifest(store.resolve(name)).entries]


def test_everything_that_counts_is_in_it(store: Store, cache: Path) -> None:
    taken = snapshot(store, cache, name="all", fingerprint=HERE, compile_id="two layers")
    content = store.read_manifest(taken.id)
    assert paths(store, "all") == helpers.make_cache(cache, triton=True)
    assert (taken.entries, taken.blobs_written, taken.new) == (9, 9, True)
    assert (content.compile_id, content.fingerprint, content.parent) == ("two layers", HERE, None)
    assert content.gpu_kernels
    assert taken.skipped == {"lock": 1, "temp": 1}


def test_an_unchanged_cache_adds_nothing_and_a_grown_one_only_what_is_new(store: Store, cache: Path) -> None:
    first = snapshot(store, cache, name="run", fingerprint=HERE)
    again = snapshot(store, cache, name="run", fingerprint=HERE)
    assert (again.id, again.new, again.blobs_written) == (first.id, False, 0)
    helpers.write(cache, "ab/cmore.main.cpp", b"// more")
    grown = snapshot(store, cache, name="run", fingerprint=HERE)
    assert (grown.new, grown.blobs_written) == (True, 1)
    assert store.read_manifest(grown.id).parent == first.id
    other = snapshot(store, cache, name="run", fingerprint=helpers.fingerprint(cpu_isa="avx512"))
    assert (other.new, other.blobs_written) == (True, 0)


def test_only_what_a_run_used(store: Store, cache: Path) -> None:
    taken = snapshot(store, cache, name="run", fingerprint=HERE, only=frozenset({helpers.NATIVE, "gone/x.py"}))
    assert paths(store, "run") == [helpers.NATIVE]
    assert taken.skipped["not found"] == 1


def test_what_torch_would_trust_wrongly_is_left_out(store: Store, cache: Path) -> None:
    graph = next(path for path in helpers.tree(cache) if path.startswith("fxgraph"))
    (cache / graph).write_bytes(b"flipped")
    whole = helpers.elf()
    for name, data in {"empty": b"", "cut": whole[:-1], "text": b"no elf"}.items():
        helpers.write(cache, f"ab/c{name}.main.so", data)
    taken = snapshot(store, cache, name="run", fingerprint=HERE)
    assert {reason: taken.skipped[reason] for reason in ("damaged", "empty", "cut")} == {
        "damaged": 1,
        "empty": 1,
        "cut": 2,
    }
    assert graph not in paths(store, "run")
    assert [path for path in paths(store, "run") if path.endswith(".so")] == [helpers.NATIVE]


def test_a_shared_object_that_is_being_built_is_left_out(store: Store, cache: Path) -> None:
    with (cache / "locks" / "ciqkernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = snapshot(store, cache, name="run", fingerprint=HERE)
    assert taken.skipped["being built"] == 1
    assert helpers.NATIVE not in paths(store, "run")


@pytest.mark.parametrize(("writes", "taken_whole"), [(1, True), (9, False)])
def test_a_file_that_changes_while_it_is_read_is_never_taken_half(
    store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch, writes: int, taken_whole: bool
) -> None:
    timing = cache / helpers.GEMM
    left = [writes]
    real = os.read

    def read_then_write(fd: int, size: int) -> bytes:
        data = real(fd, size)
        if left[0] and os.path.samestat(os.fstat(fd), timing.stat()):
            left[0] -= 1
            timing.write_bytes(timing.read_bytes().replace(b"1", b"2", 1))  # the same size, another time
            os.utime(timing, ns=(0, left[0]))
        return data

    monkeypatch.setattr(module.os, "read", read_then_write)
    taken = snapshot(store, cache, name="run", fingerprint=HERE)
    assert (helpers.GEMM in paths(store, "run")) is taken_whole
    assert taken.skipped.get("changing", 0) == (not taken_whole)


def test_a_file_of_this_very_moment_is_read_again(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    monkeypatch.setattr(module.time, "time_ns", lambda: (cache / helpers.GEMM).stat().st_mtime_ns + 1)
    for path in helpers.tree(cache):
        os.utime(cache / path, ns=(0, 0))
    os.utime(cache / helpers.GEMM, ns=(0, 10**15))
    taken = snapshot(store, cache, name="run", fingerprint=HERE)
    assert (len(pauses), taken.skipped["changing"]) == (2, 1)


def test_triton_groups_are_stored_without_the_directory(store: Store, cache: Path) -> None:
    taken = snapshot(store, cache, name="run", fingerprint=HERE)
    entry = next(one for one in store.read_manifest(taken.id).entries if "__grp__" in one.path)
    stored = store.read_blob(entry.sha256, limit=entry.size)
    assert json.loads(stored) == {"child_paths": {"kernel.cubin": "@CACHE@/triton/0/HASH/kernel.cubin"}}


def test_a_triton_group_that_points_outside_is_left_out(store: Store, cache: Path) -> None:
    helpers.write(cache, "triton/0/HASH/__grp__kernel.json", b'{"child_paths": {"kernel.cubin": "/etc/passwd"}}')
    assert snapshot(store, cache, name="run", fingerprint=HERE).skipped["points outside"] == 1


def test_nothing_to_take_is_an_error_and_leaves_no_snapshot(store: Store, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(UsageError, match="nothing to snapshot"):
        snapshot(store, tmp_path / "bare", name="run", fingerprint=HERE)
    assert (store.names(), store.ids()) == ((), ())


def test_paths_that_differ_only_in_case_are_not_written(store: Store, cache: Path) -> None:
    helpers.write(cache, "ab/x.cpp", b"1")
    helpers.write(cache, "ab/X.cpp", b"2")
    with pytest.raises(Exception, match="differ only in case"):
        snapshot(store, cache, name="run", fingerprint=HERE)
    assert store.ids() == ()


def test_a_full_disk_is_one_line_and_no_snapshot(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "blobs/ab")

    monkeypatch.setattr("envguard.atomic.os.fsync", full)
    with pytest.raises(StorageError, match=r"writing snapshot run to .* failed at blobs/ab: No space left on device"):
        snapshot(store, cache, name="run", fingerprint=HERE)
    assert (store.names(), store.ids()) == ((), ())


def test_a_store_in_the_cache_itself_is_refused(cache: Path, tmp_path: Path) -> None:
    """Each snapshot would hold all that came before it."""
    inside = create_store(cache / "store")
    (tmp_path / "link").symlink_to(cache)
    for way in (cache, tmp_path / "link", inside.root):
        with pytest.raises(UsageError, match=r"(lies in|is) the cache"):
            snapshot(inside, way, name="run", fingerprint=HERE)
    assert inside.ids() == ()
