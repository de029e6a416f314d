"""What was a file when it was listed may be something else, or much more, when it is read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_tools import filereader, intake, manifest
from cache_tools import snapshot as module
from cache_tools.errors import CorruptError
from cache_tools.kinds import GRAPHS
from cache_tools.scan import Entry, Scan, scan
from cache_tools.snapshot import snapshot
from cache_tools.store import Store
from cache_tools.verify import verify_store

from . import helpers

HERE = helpers.fingerprint()
SMALL, LARGE = helpers.SOURCE_CPP, "odd/large.bin"
GRAPH_BYTES = b"pickled graph, and its kernels" * 200_000
GRAPH = f"fxgraph/gr/fgraph/{helpers.b32(GRAPH_BYTES)}"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache")
    helpers.write(tmp_path / "cache", LARGE, os.urandom(5 << 20))
    helpers.write(tmp_path / "cache", GRAPH, GRAPH_BYTES)
    return tmp_path / "cache"


def after_listing(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    def listed(
        cache_dir: Path, *, pass_over: Callable[[str], bool], on_graph: Callable[[Entry], object] | None = None
    ) -> Scan:
        found = scan(cache_dir, pass_over=pass_over)
        change()
        for entry in found.entries if on_graph else ():
            if entry.kind in GRAPHS and on_graph:
                on_graph(entry)
        return found

    monkeypatch.setattr(intake, "scan", listed)


@pytest.mark.parametrize(
    ("becomes", "reason"), [("link", "link"), ("folder", "not a file"), ("pipe", "not a file"), ("under", "vanished")]
)
@pytest.mark.parametrize("path", [SMALL, LARGE, GRAPH])
def test_what_is_no_file_any_more_is_left_out(
    store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch, path: str, becomes: str, reason: str
) -> None:
    def change() -> None:
        file = cache / path
        file.unlink()
        if becomes == "link":
            file.symlink_to("/etc/passwd")
        elif becomes == "folder":
            file.mkdir()
        elif becomes == "pipe":
            os.mkfifo(file)
        else:  # its folder has become a file
            for other in file.parent.iterdir():
                other.unlink()
            file.parent.rmdir()
            file.parent.write_bytes(b"x")

    after_listing(monkeypatch, change)
    done: list[module.SnapshotResult] = []
    work = threading.Thread(
        target=lambda: done.append(snapshot(store, cache, name="run", fingerprint=HERE)), daemon=True
    )
    work.start()
    work.join(60)
    assert done, "it waits for ever, or failed"
    assert done[0].skipped[reason] >= 1
    assert path not in [entry.path for entry in store.read_manifest(done[0].id).entries]
    assert verify_store(store.root).problems == ()


def test_a_file_that_outgrows_the_limit_is_left_out(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (filereader, manifest):
        monkeypatch.setattr(where, "MAX_ENTRY_BYTES", 6 << 20)
    after_listing(monkeypatch, lambda: (cache / LARGE).write_bytes(bytes(7 << 20)))
    assert snapshot(store, cache, name="run", fingerprint=HERE).skipped["too large"] == 1
    assert verify_store(store.root).problems == ()


def test_the_longest_name_of_a_shared_object_is_taken(store: Store, cache: Path) -> None:
    path = helpers.write(cache, f"ab/{'x' * 252}.so", helpers.elf())
    taken = snapshot(store, cache, name="run", fingerprint=HERE)
    assert path in [entry.path for entry in store.read_manifest(taken.id).entries]


@pytest.mark.parametrize("fault", ["unprintable", "long", "all files", "compile time"])
def test_what_could_not_be_read_back_is_not_written(
    store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    told = {"unprintable": "8\r", "long": "x" * 5000}.get(fault, "8")
    if fault == "all files":
        monkeypatch.setattr(manifest, "MAX_TOTAL_BYTES", 1 << 20)
    build_ms = manifest.MAX_BUILD_MS + 1 if fault == "compile time" else 1
    with pytest.raises(CorruptError, match="the new manifest"):
        snapshot(store, cache, name="run", fingerprint=helpers.fingerprint(threads=told), build_ms=build_ms)
    assert (store.ids(), store.names()) == ((), ())


@pytest.mark.parametrize("data", [b"{}", b"[]", b"no json", b"[" * 100_000])
def test_a_name_for_what_is_no_manifest_is_refused(store: Store, cache: Path, data: bytes) -> None:
    id_ = manifest.id_of(data)
    store.manifest_path(id_).write_bytes(data)
    store.set_ref("run", id_)
    with pytest.raises(CorruptError, match=id_):
        snapshot(store, cache, name="run", fingerprint=HERE)
