"""Kinds, names that are checksums, and what a scan leaves out."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from cache_tools.kinds import RESTORE_ORDER, Kind, kind_of, name_matches
from cache_tools.scan import scan
from cache_tools.target import check_replaceable
from envguard.errors import UsageError

from . import helpers


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("fxgraph/qy/fkey/ib6wen", Kind.FXGRAPH),
        ("aotautograd/akey/tzwqai", Kind.AOTAUTOGRAD),
        ("a4/ca4x5w.py", Kind.SOURCE),
        ("iq/ciq.main.cpp", Kind.SOURCE),
        ("iq/ciq.main.so", Kind.NATIVE),
        ("iq/ciq.optimized.o", Kind.NATIVE),
        ("triton/0/HASH/kernel.cubin", Kind.TRITON),
        ("triton/0/HASH/launcher.so", Kind.TRITON),
        ("hh/hash.best_config", Kind.AUTOTUNE),
        ("cache/44136fa3", Kind.GEMM),
        ("dynamo/code_state_job1_None_.pkl", Kind.PGO),
        ("dynamo/source/entry", Kind.PRECOMPILE),
        ("cache_tools/0f3a.json", Kind.KEYS),
        ("locks/ciq.lock", Kind.LOCK),
        ("dynamo/code_state_job1_None_.pkl.lock", Kind.LOCK),
        ("a4/.4538.140.tmp", Kind.TEMP),
        ("triton/0/tmp.5f2c/kernel.cubin", Kind.TEMP),
        ("tmp6kvvifes/zf/czf.py", Kind.UNKNOWN),
        ("precompiled_headers/cx.h.gch", Kind.HEADER),
        ("cx/cx.h.gch", Kind.HEADER),
        ("notes.txt", Kind.UNKNOWN),
    ],
)
def test_kind(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


def test_what_names_others_is_restored_after_them() -> None:
    order = sorted(Kind, key=RESTORE_ORDER.__getitem__)
    assert (
        order.index(Kind.NATIVE) < order.index(Kind.SOURCE) < order.index(Kind.FXGRAPH) < order.index(Kind.AOTAUTOGRAD)
    )


def test_a_python_name_hashes_the_stripped_text() -> None:
    name = f"ab/c{helpers.b32(b'x = 1')}.py"
    assert name_matches(name, Kind.SOURCE, b"\n x = 1\n\xc2\xa0\n"), "torch strips Unicode white space too"
    assert not name_matches(name, Kind.SOURCE, b"x = 2")


def test_scan_keeps_entries_and_counts_the_rest(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kept = helpers.make_cache(cache, triton=True)
    outside = helpers.write(tmp_path, "secret", b"do not follow")
    (cache / "fxgraph" / "link").symlink_to(tmp_path / outside)
    (cache / "linked-folder").symlink_to(tmp_path)
    helpers.write(cache, "ab/cempty.main.so", b"")
    helpers.write(cache, "ab/with space.py", b"x")
    helpers.write(cache, "precompiled_headers/c.h.gch", b"header")
    found = scan(cache)
    assert [entry.path for entry in found.entries] == kept
    assert found.skipped == {"empty": 1, "header": 1, "link": 2, "lock": 1, "temp": 1, "unsafe name": 1}
    executable = {entry.path for entry in found.entries if entry.executable}
    assert executable == {helpers.NATIVE}


def test_what_a_compile_without_caches_leaves_is_not_kept(tmp_path: Path) -> None:
    """torch makes a folder for each under TORCHINDUCTOR_FORCE_DISABLE_CACHES, and reads it never again."""
    cache = tmp_path / "cache"
    kept = helpers.make_cache(cache)
    for path in ("tmp6kvvifes/zf/czf.py", "tmpn4_x1g2e/fxgraph/ab/fabkey/x", "tmpn4_x1g2e/zf/c.so"):
        helpers.write(cache, path, b"x")
    found = scan(cache)
    assert [entry.path for entry in found.entries] == sorted(kept)
    assert found.skipped["temp"] == 4
    assert check_replaceable(cache) == len(helpers.tree(cache))


def test_a_scan_beside_a_busy_writer_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is renamed from one folder to another while they are listed must not be missed."""
    cache = tmp_path / "cache"
    path = helpers.write(cache, "zz/cmoving.py", b"x = 1")
    helpers.write(cache, "aa/cstill.py", b"x = 2")
    moves = iter(["aa/cmoving.py"])  # after aa was listed, before zz is

    def list_and_move(folder: Path) -> Any:
        if Path(folder).name == "zz" and (destination := next(moves, None)):
            (cache / path).rename(cache / destination)
        return scandir(folder)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", list_and_move)
    found = scan(cache)
    assert [entry.path for entry in found.entries] == ["aa/cmoving.py", "aa/cstill.py"]
    assert found.settled


def test_a_writer_that_never_rests_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    helpers.make_cache(cache)
    numbers = itertools.count()

    def list_and_add(folder: Path) -> Any:
        listing = scandir(folder)
        helpers.write(cache, f"locks/{next(numbers)}.lock", b"")  # locks come and go, and say nothing
        if busy:
            helpers.write(cache, f"ca/cnew{next(numbers)}.py", b"x")
        return listing

    scandir, busy = os.scandir, False
    monkeypatch.setattr(os, "scandir", list_and_add)
    assert scan(cache).settled
    busy = True
    assert not scan(cache).settled


def test_a_file_that_a_rule_misses_is_no_folder_that_vanished(tmp_path: Path) -> None:
    helpers.make_cache(tmp_path)

    def fail(folder: str) -> bool:
        raise FileNotFoundError(folder)

    with pytest.raises(FileNotFoundError):
        scan(tmp_path, pass_over=fail)


def test_scan_of_nothing_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TORCHINDUCTOR_CACHE_DIR"):
        scan(tmp_path / "absent")
