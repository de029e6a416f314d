"""Kernels that a graph entry holds: told from torch's own bundles, left out of snapshots, there again after a hit."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from cache_tools import bundled, filereader
from cache_tools.bundled import kernels_in, without_kernels
from cache_tools.errors import CorruptError, SecretsError
from cache_tools.intake import Intake
from cache_tools.manifest import MAX_ENTRY_BYTES, from_bytes, to_bytes
from cache_tools.packs import LARGE
from cache_tools.plan import plan_restore
from cache_tools.restore import execute
from cache_tools.scan import Entry
from cache_tools.secrets import Policy, Scanner
from cache_tools.snapshot import SnapshotResult, snapshot
from cache_tools.store import Store, create_store

from . import helpers
from .test_cli import Cli

HERE = helpers.fingerprint()
PROGRAM = Path(__file__).with_name("bundle_kernels.py")
SECRET = "hunter2secret-hunter2secret"
SUFFIXES = ("cubin", "ptx", "llir", "ttir", "ttgir", "source", "json")


def folder_name(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().strip("=")


HELD = [f"0/{folder_name(f'kernel {number}')}" for number in range(3)]
ALONE = f"0/{folder_name('of no graph')}"
ELSEWHERE = f"1/{HELD[0].partition('/')[2]}"
"""The same kernel, compiled for another device, of which no graph entry holds the files."""


def write_kernel(cache: Path, kernel: str) -> list[str]:
    """The files that triton leaves of one kernel."""
    folder, name = f"triton/{kernel}", f"triton_red_{kernel[2:6].lower()}"
    files = [
        helpers.write(cache, f"{folder}/{name}.{suffix}", f"{suffix} of {kernel}\n".encode() * 900)
        for suffix in SUFFIXES
    ]
    group = {"child_paths": {file.rpartition("/")[2]: f"{cache}/{file}" for file in files}}
    return [*files, helpers.write(cache, f"{folder}/__grp__{name}.json", json.dumps(group).encode())]


def torchs(what: str, cache: Path, *arguments: str, given: bytes = b"") -> bytes:
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    environ.pop("TRITON_CACHE_DIR", None)
    command = [sys.executable, str(PROGRAM), what, *arguments]
    done = subprocess.run(command, env=environ, input=given, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A graph entry, made by torch from the files of ``HELD``."""
    cache = tmp_path_factory.mktemp("bundle")
    for kernel in HELD:
        write_kernel(cache, kernel)
    return torchs("collect", cache, *HELD)


@pytest.fixture
def cache(tmp_path: Path, entry: bytes) -> Path:
    root = tmp_path / "cache"
    helpers.make_cache(root)
    for kernel in (*HELD, ALONE, ELSEWHERE):
        write_kernel(root, kernel)
    helpers.write(root, f"triton/{ALONE[:-4]}AAAA/__triton_launcher.so", helpers.elf())
    write_entry(root, entry)
    return root


def write_entry(cache: Path, data: bytes) -> str:
    return helpers.write(cache, f"fxgraph/xy/fxykey/{helpers.b32(data)}", data)


def take(store: Store, cache: Path, **options: object) -> SnapshotResult:
    return snapshot(store, cache, name="run", fingerprint=HERE, **options)  # type: ignore[arg-type]


def kernels_of(store: Store, id_: str) -> set[str]:
    """Folders under ``triton/`` of which the snapshot has files."""
    paths = [entry.path for entry in store.read_manifest(id_).entries]
    return {path.partition("/")[2].rpartition("/")[0] for path in paths if path.startswith("triton/")}


def reader(data: bytes) -> bundled.Read:
    return lambda at, length: data[at : at + length]


def test_they_are_told_from_torchs_own_entry(entry: bytes) -> None:
    text = b"".join(without_kernels(reader(entry), len(entry)))
    assert kernels_in([entry]) == kernels_in([text]) == set(HELD)
    assert b"cubin of" not in text
    assert len(text) < len(entry) / 3
    rest = pickle.dumps({"source": "text before " * 2000})[20:-20]
    assert rest in text
    assert b"text after text after" in text


def test_wherever_the_pieces_are_cut(entry: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    at = entry.index(HELD[1][2:].encode())
    for cut in range(at - 80, at + 80):
        assert kernels_in([entry[:cut], entry[cut:]]) == set(HELD)
    text = b"".join(without_kernels(reader(entry), len(entry)))
    for size in (64, 1000, 5001):
        monkeypatch.setattr(bundled, "_PIECE", size)
        assert b"".join(without_kernels(reader(entry), len(entry))) == text


@pytest.mark.parametrize("by", range(0, 200, 3))
def test_a_damaged_or_foreign_entry_ends_the_walk_and_loses_no_text(entry: bytes, by: int) -> None:
    begin = entry.index(b"TritonKernelArtifacts") + 21 + by
    for bad in (entry[:begin], entry[:begin] + b"\xff" * 600, entry[:begin] + b"\x8e" + b"\xff" * 8 + b"tail" * 99):
        text = b"".join(without_kernels(reader(bad), len(bad)))
        assert text.startswith(entry[: entry.index(b"TritonKernelArtifacts")])
        if b"tail" in bad:
            assert b"tail" in text
    assert b"".join(without_kernels(reader(b"no pickle"), 9)) == b"no pickle"


def test_an_entry_of_nothing_but_opcodes_is_given_up(entry: bytes) -> None:
    begin = entry.index(b"\x8c\x15TritonKernelArtifacts\x94")
    hostile = entry[:begin] + b"\x8c\x15TritonKernelArtifacts\x94" + b"N" * 3_000_000
    assert b"".join(without_kernels(reader(hostile), len(hostile))) == hostile
    calls = 0

    def read(at: int, length: int) -> bytes:
        nonlocal calls
        calls += 1
        return hostile[at : at + length]

    list(without_kernels(read, len(hostile)))
    assert calls < 60


def test_a_snapshot_leaves_them_out_and_torch_writes_them_anew(
    store: Store, cache: Path, tmp_path: Path, entry: bytes
) -> None:
    taken = take(store, cache)
    assert taken.skipped["kernels in graph entries"] == len(HELD)
    assert kernels_of(store, taken.id) == {ALONE, ELSEWHERE, f"{ALONE[:-4]}AAAA"}
    content = store.read_manifest(taken.id)
    assert content.kernels == len(HELD)
    new = tmp_path / "new"
    execute(plan_restore(store, taken.id, new, here=HERE))
    torchs("emit", new, given=entry)
    expected = {path: data.replace(bytes(cache), bytes(new)) for path, data in helpers.tree(cache / "triton").items()}
    assert helpers.tree(new / "triton") == expected


def test_an_unchanged_cache_is_the_same_snapshot_without_being_read(
    store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take(store, cache)
    monkeypatch.setattr("cache_tools.filereader.without_kernels", lambda *_: pytest.fail("an entry was read again"))
    again = take(store, cache)
    assert (again.id, again.new, again.skipped) == (first.id, False, first.skipped)


def test_all_kernels_on_request(store: Store, cache: Path) -> None:
    taken = take(store, cache, all_kernels=True)
    assert kernels_of(store, taken.id) >= {*HELD, ALONE, ELSEWHERE}
    assert "kernels in graph entries" not in taken.skipped
    assert store.read_manifest(taken.id).kernels == len(HELD)
    cli = Cli(cache.parent)
    assert "left out: 3 kernels in graph entries" in cli.run("snapshot", "--name", "few").stderr
    assert "in graph entries" not in cli.run("snapshot", "--name", "all", "--all-kernels").stderr
    assert kernels_of(store, store.resolve("all")) == kernels_of(store, taken.id)
    assert "Triton kernels in graph entries: 3\n" in cli.run("show", "few").stdout
    assert json.loads(cli.run("show", "few", "--json").stdout)["kernels_in_graph_entries"] == 3


def test_a_diff_does_not_list_what_a_snapshot_leaves_out(store: Store, cache: Path) -> None:
    cli = Cli(cache.parent)
    cli.run("snapshot", "--name", "few")
    cli.run("snapshot", "--name", "all", "--all-kernels")

    def triton(*sides: str) -> dict[str, object]:
        return dict(cli.json("diff", *sides)["kinds"]["triton"])

    left_out = len(HELD) * (len(SUFFIXES) + 1)
    same = triton("few", str(cache))
    assert (same["only_a"], same["only_b"], same["in_graph_entries"]) == ([], [], left_out)
    assert f" 0 only in B, 0 differ, {left_out} in graph entries\n" in cli.run("diff", "few", str(cache)).stdout
    assert triton(str(cache), "few") == same
    assert triton("all", str(cache)) == same | {"same": cast(int, same["same"]) + left_out, "in_graph_entries": 0}
    assert len(cast(list[str], triton("all", "few")["only_a"])) == left_out, "of snapshots, each is what it is"
    new = write_kernel(cache, f"0/{folder_name('new, and of no graph')}")
    assert triton("few", str(cache)) == same | {"only_b": sorted(new)}
    damaged = next((cache / f"triton/{HELD[0]}").glob("*.cubin"))
    damaged.write_bytes(b"other")
    assert triton("all", str(cache))["differing"] == [damaged.relative_to(cache).as_posix()]


@pytest.mark.parametrize("padding", [0, LARGE], ids=["small", "large"])
def test_where_the_entry_is_damaged_its_kernels_are_kept(store: Store, cache: Path, entry: bytes, padding: int) -> None:
    (cache / write_entry(cache, entry)).unlink()
    data = entry + b"." * padding
    file = cache / write_entry(cache, data)
    file.write_bytes(data[:-1] + b"X")
    taken = take(store, cache)
    assert taken.skipped["damaged"] == 1
    assert kernels_of(store, taken.id) >= {*HELD, ALONE}
    assert store.read_manifest(taken.id).kernels == 0


def test_a_large_entry_is_kept_bit_for_bit_and_once(store: Store, cache: Path, entry: bytes, tmp_path: Path) -> None:
    (cache / write_entry(cache, entry)).unlink()
    large = write_entry(cache, entry + b"." * LARGE)
    helpers.write(cache, large.replace("fxykey", "fxyother"), entry + b"." * LARGE)
    for _ in range(2):
        taken = take(store, cache)
        digests = [one.sha256 for one in store.read_manifest(taken.id).entries if one.path.startswith("fxgraph/xy")]
        assert digests == [hashlib.sha256(entry + b"." * LARGE).hexdigest()] * 2
    assert taken.blobs_written == 0
    execute(plan_restore(store, taken.id, tmp_path / "new", here=HERE))
    assert (tmp_path / "new" / large).read_bytes() == entry + b"." * LARGE


def test_secrets_beside_the_kernels_are_found(store: Store, cache: Path, entry: bytes) -> None:
    scanner = Scanner(Policy.WARN, environ={"MY_TORCH_TOKEN": SECRET})
    for padding, key in ((b"", "fsmall"), (b"." * LARGE, "flarge")):
        data = entry + pickle.dumps({"environ": f"os.environ['MY_TORCH_TOKEN'] = '{SECRET}'"}) + padding
        helpers.write(cache, f"fxgraph/xy/{key}/{helpers.b32(data)}", data)
    take(store, cache, scanner=scanner)
    assert sorted(one.path.split("/")[2] for one in scanner.findings) == ["flarge", "fsmall"]


def test_a_graph_entry_is_opened_once(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [cache / path for path in helpers.tree(cache) if path.startswith("fxgraph")]
    for graph in graphs:
        os.utime(graph, (1e9, 1e9))  # one that was written just now is read again
    opened: list[str] = []
    really = os.open

    def count(path: str, *rest: int, **more: int) -> int:
        opened.append(str(path))
        return really(path, *rest, **more)

    monkeypatch.setattr(os, "open", count)
    take(store, cache, scanner=Scanner(Policy.WARN, environ={}))
    assert sorted(path for path in opened if "/fxgraph/" in path) == sorted(map(str, graphs))


def test_a_run_that_used_graph_entries_alone_was_on_a_gpu(store: Store, cache: Path, tmp_path: Path) -> None:
    graph = next(path for path in helpers.tree(cache) if path.startswith("fxgraph/xy"))
    taken = take(store, cache, only=frozenset({graph}))
    content = store.read_manifest(taken.id)
    assert [one.path for one in content.entries] == [graph]
    assert content.gpu_kernels
    here = helpers.fingerprint(gpu_sm_count="66")
    assert [one.name for one in plan_restore(store, taken.id, tmp_path / "new", here=here).comparison.fatal] == [
        "gpu_sm_count"
    ]
    assert from_bytes(to_bytes(content), origin="m") == content


def test_triton_cache_dir_without_devices(store: Store, cache: Path) -> None:
    for kernel in (*HELD, ALONE):
        (cache / "triton" / kernel).rename(cache / "triton" / kernel[2:])
    taken = take(store, cache)
    assert taken.skipped["kernels in graph entries"] == len(HELD)
    assert kernels_of(store, taken.id) >= {ALONE[2:], ELSEWHERE}


def test_a_kernel_without_files_is_not_named(entry: bytes) -> None:
    begin = entry.index(HELD[0][2:].encode()) - 2
    first = entry[begin : entry.index(b"]\x94", begin) + 2]
    named = entry[entry.index(b"\x8c\x15TritonKernelArtifacts\x94") : begin] + first
    assert kernels_in([named + b"(h"]) == {HELD[0]}
    assert kernels_in([named[:9], named[9:] + b"(h"]) == {HELD[0]}
    assert kernels_in([named + b"ub"]) == frozenset()


def once_after(monkeypatch: pytest.MonkeyPatch, path: str, change: Callable[[], object]) -> None:
    """Do ``change`` as soon as the entry ``path`` was looked at."""
    learn = Intake._learn

    def then_change(self: Intake, entry: Entry) -> None:
        learn(self, entry)
        if entry.path == path:
            monkeypatch.setattr(Intake, "_learn", learn)
            change()

    monkeypatch.setattr(Intake, "_learn", then_change)


@pytest.mark.parametrize("padding", [0, LARGE], ids=["small", "large"])
def test_an_entry_that_was_repaired_meanwhile_holds_what_it_holds_now(
    store: Store,
    cache: Path,
    entry: bytes,
    padding: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in (cache / "fxgraph/xy").rglob("*"):
        if path.is_file():
            path.unlink()
    good = b"a graph without kernels" * 50 + bytes(padding)
    file = cache / write_entry(cache, good)
    file.write_bytes(entry + bytes(padding))  # damaged: not what the name says
    once_after(monkeypatch, file.relative_to(cache).as_posix(), lambda: file.write_bytes(good))
    taken = take(store, cache)
    assert kernels_of(store, taken.id) >= {*HELD, ALONE}
    assert store.read_manifest(taken.id).kernels == 0
    again = take(store, cache)
    assert kernels_of(store, again.id) >= {*HELD, ALONE}


@pytest.mark.parametrize("padding", [0, LARGE], ids=["small", "large"])
def test_secrets_in_an_entry_that_was_repaired_meanwhile_are_found(
    store: Store,
    cache: Path,
    padding: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = b"os.environ['MY_TORCH_TOKEN'] = '" + SECRET.encode() + b"'\n" + bytes(padding)
    file = cache / write_entry(cache, good)
    file.write_bytes(b"half")
    once_after(monkeypatch, file.relative_to(cache).as_posix(), lambda: file.write_bytes(good))
    with pytest.raises(SecretsError):
        take(store, cache, scanner=Scanner(Policy.FAIL, environ={"MY_TORCH_TOKEN": SECRET}))


def test_secrets_in_an_entry_that_is_not_kept_are_no_reason_to_refuse(store: Store, cache: Path) -> None:
    data = b"os.environ['MY_TORCH_TOKEN'] = '" + SECRET.encode() + b"'\n"
    (cache / write_entry(cache, data)).write_bytes(data + b"damaged")
    assert take(store, cache, scanner=Scanner(Policy.FAIL, environ={"MY_TORCH_TOKEN": SECRET})).skipped["damaged"] == 1


def test_an_entry_that_is_too_large_is_not_read(
    store: Store,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = cache / write_entry(cache, b"large")
    with file.open("r+b") as handle:
        handle.truncate(MAX_ENTRY_BYTES + 1)
    looked_at: list[int] = []

    def note(_read: bundled.Read, size: int) -> list[bytes]:
        looked_at.append(size)
        return []

    monkeypatch.setattr("cache_tools.filereader.without_kernels", note)
    assert take(store, cache).skipped["too large"] == 1
    assert max(looked_at) < MAX_ENTRY_BYTES


def test_more_kernels_than_a_manifest_may_tell(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_tools.manifest.MAX_KERNELS", len(HELD) - 1)
    with pytest.raises(CorruptError, match="3 kernels in graph entries; allowed: 2"):
        take(store, cache)
    assert store.ids() == ()


def test_a_large_entry_is_looked_at_and_then_read_once(
    store: Store, cache: Path, entry: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / write_entry(cache, entry)).unlink()
    data = entry + b"." * LARGE
    write_entry(cache, data)
    streams: list[str] = []
    chunks = filereader._chunks

    def noted(fd: int) -> Iterator[bytes]:
        streams.append(os.readlink(f"/proc/self/fd/{fd}"))
        return chunks(fd)

    monkeypatch.setattr(filereader, "_chunks", noted)
    take(store, cache, scanner=Scanner(Policy.WARN, environ={}))
    assert [one.rpartition("/")[2] for one in streams] == [helpers.b32(data)]


def test_where_no_thread_can_be_started(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    expected = store.read_manifest(take(store, cache).id)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    alone = create_store(store.root.parent / "alone")
    assert alone.read_manifest(take(alone, cache).id).entries == expected.entries


def test_secrets_in_what_triton_tells_of_a_kernel_are_found(store: Store, cache: Path, tmp_path: Path) -> None:
    told = f'{{"extern_libs": "{SECRET}"}}'.encode()
    for root in (cache, tmp_path / "other"):
        write_kernel(root, HELD[0])
        (file,) = (root / "triton" / HELD[0]).glob("triton_*.json")
        file.write_bytes(told)
    data = torchs("collect", tmp_path / "other", HELD[0])
    path = write_entry(cache, data)
    scanner = Scanner(Policy.WARN, environ={"MY_TORCH_TOKEN": SECRET})
    take(store, cache, scanner=scanner)
    assert [one.path for one in scanner.findings] == [path]
    assert told in b"".join(without_kernels(reader(data), len(data)))
    assert b"cubin of" not in b"".join(without_kernels(reader(data), len(data)))
