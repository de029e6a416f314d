"""Manifests and stores made to do harm: refused with one kind of error, quickly, and nothing is written.

``test_manifest.py`` has one example for each rule; here are combinations, generated ones, and whole stores.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tools import manifest
from cache_tools.errors import CorruptError
from cache_tools.kinds import NOT_KEPT, Kind
from cache_tools.manifest import MAX_ENTRY_BYTES, Manifest, ManifestEntry, from_bytes, to_bytes
from cache_tools.plan import best_match, plan_restore
from cache_tools.restore import execute
from cache_tools.snapshot import snapshot
from cache_tools.store import Store
from cache_tools.trust import record_own
from cache_tools.verify import list_snapshots, verify_store
from envguard.errors import UsageError

from . import helpers
from .test_cli import Cli
from .test_manifest import entry, example

HERE = helpers.fingerprint()
GOOD = to_bytes(example())


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^m\.json") as caught:
        from_bytes(data, origin="m.json")
    assert str(caught.value).isprintable(), "one line, and nothing that a terminal would obey"
    assert len(str(caught.value)) < 1000


NOT_CANONICAL = {
    "space after a colon": GOOD.replace(b'"format":1', b'"format": 1'),
    "space at the end": GOOD + b" ",
    "new line at the end": GOOD + b"\n",
    "nul at the end": GOOD + b"\0",
    "second document": GOOD + GOOD,
    "space in front": b" " + GOOD,
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "utf-16": GOOD.decode().encode("utf-16"),
    "utf-32": GOOD.decode().encode("utf-32"),
    "keys in another order": json.dumps(json.loads(GOOD), separators=(",", ":")).encode()[:-1]
    + b"}".replace(b"}", b',"format":1}'),
    "same key twice": GOOD.replace(b'"format":1', b'"format":1,"format":1'),
    "same inner key twice": GOOD.replace(b'"exec":false', b'"exec":false,"exec":false', 1),
    "escaped letter": GOOD.replace(b"source", b"\\u0073ource", 1),
    "escaped slash": GOOD.replace(b"ab/x.py", b"ab\\/x.py", 1),
    "escaped key": GOOD.replace(b'"format"', b'"\\u0066ormat"', 1),
    "fraction": GOOD.replace(b'"size":3', b'"size":3.0', 1),
    "exponent": GOOD.replace(b'"size":3', b'"size":3e0', 1),
    "leading zero": GOOD.replace(b'"size":3', b'"size":03', 1),
    "plus": GOOD.replace(b'"size":3', b'"size":+3', 1),
    "minus zero": GOOD.replace(b'"build_ms":null', b'"build_ms":-0', 1),
    "nan": GOOD.replace(b'"build_ms":null', b'"build_ms":NaN', 1),
    "infinity": GOOD.replace(b'"size":3', b'"size":Infinity', 1),
    "comment": GOOD.replace(b'"format":1', b'/**/"format":1', 1),
    "single quotes": GOOD.replace(b'"', b"'"),
    "comma at the end": GOOD[:-1] + b",}",
    "bad utf-8": GOOD.replace(b"source", b"sourc\xff", 1),
    "overlong slash": GOOD.replace(b"ab/x.py", b"ab\xc0\xafx.py", 1),
}


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_the_same_thing_in_another_form_is_refused(name: str) -> None:
    assert NOT_CANONICAL[name] != GOOD
    refused(NOT_CANONICAL[name])


WRONG: tuple[object, ...] = (
    True,
    -1,
    1.5,
    10**30,
    1 << 62,
    "",
    "a\nb",
    "a\0b",
    "\x1b[31mred",
    "\ud800",
    "\u202egnp",
    "x" * 100_000,
    [],
    {},
    [[]],
    {"a": {}},
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(path: tuple[Any, ...], value: object) -> object:
    if not path:
        return value
    document = json.loads(GOOD)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def test_no_value_of_a_wrong_type_or_form_is_taken_anywhere() -> None:
    fine = {
        ("fingerprint", "key_version"): [1 << 62, 10**30],  # another version: compare refuses it
        ("entries",): [[]],  # a snapshot of nothing
    }
    tried = 0
    for path, value in itertools.product(places(json.loads(GOOD)), WRONG):
        is_field = path[:2] == ("fingerprint", "values") and len(path) == 3
        is_switch = path[-1:] == ("exec",) and value is True
        if value in fine.get(path, []) or (is_field and value == "") or is_switch:
            continue
        try:
            refused(canonical(changed(path, value)))
        except pytest.fail.Exception:
            raise AssertionError(f"{value!r:.60} at {path} is taken") from None
        tried += 1
    assert tried > 500


def test_no_unknown_and_no_missing_key_is_taken_anywhere() -> None:
    for path in places(json.loads(GOOD)):
        document = json.loads(GOOD)
        inner = document
        for key in path:
            inner = inner[key]
        if isinstance(inner, dict):
            inner["\x1b[2J\nerror: fine"] = None
            refused(canonical(document))
            del inner["\x1b[2J\nerror: fine"]
            inner.pop(next(iter(inner)))
            refused(canonical(document))


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@given(documents)
@settings(max_examples=200, deadline=None)
def test_any_document_at_any_place_is_refused_or_means_itself(document: object) -> None:
    for path in ((), ("entries",), ("entries", 0), ("entries", 0, "path"), ("fingerprint",), ("parent",), ("tool",)):
        data = canonical(changed(path, document))
        with contextlib.suppress(CorruptError):
            assert to_bytes(from_bytes(data, origin="m.json")) == data


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=500, deadline=None)
def test_bytes_changed_anywhere_are_refused_or_mean_themselves(edits: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for at, byte in edits:
        data[at] = byte
    with contextlib.suppress(CorruptError):
        assert to_bytes(from_bytes(bytes(data), origin="m.json")) == data


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_rubbish_is_refused(data: bytes) -> None:
    refused(data)


segments = st.sampled_from(
    ["..", ".", "", "a", "A", "b.py", "...", "~", "C:", "a\\b", "a b", "\u00e9", "CON", "-x", "\t"]
)


@given(st.lists(segments, min_size=1, max_size=18).map("/".join) | st.text(max_size=30))
@settings(max_examples=500, deadline=None)
def test_a_path_that_is_taken_stays_inside(path: str) -> None:
    data = canonical(changed(("entries",), [json.loads(GOOD)["entries"][0] | {"path": path}]))
    try:
        (taken,) = from_bytes(data, origin="m.json").entries
    except CorruptError:
        return
    assert taken.path == path
    assert os.path.normpath(f"/base/{path}") == f"/base/{path}"
    assert path.isascii()
    assert path.isprintable()
    assert not {" ", "\\", ":", "~"} & set(path)


@given(st.lists(st.text("aAbB/", min_size=1, max_size=6), min_size=1, max_size=6))
@settings(max_examples=500, deadline=None)
def test_paths_that_are_taken_can_all_exist_where_names_ignore_case(paths: list[str]) -> None:
    entries = [json.loads(GOOD)["entries"][0] | {"path": path} for path in paths]
    try:
        taken = from_bytes(canonical(changed(("entries",), entries)), origin="m.json").entries
    except CorruptError:
        return
    files = {one.path.lower() for one in taken}
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    assert len(files) == len(taken)
    assert not files & folders
    real = {"/".join(one.path.split("/")[:depth]) for one in taken for depth in range(1, one.path.count("/") + 1)}
    assert len(real) == len(folders)


@pytest.mark.parametrize(
    "path", ["locks/x.lock", "ab/x.lock", ".tmp-restore-x/y.py", "ab/x.tmp", "tmp.x/y.py", "precompiled_headers/x.h"]
)
def test_paths_that_no_snapshot_keeps_are_refused(path: str) -> None:
    refused(canonical(changed(("entries",), [json.loads(GOOD)["entries"][0] | {"path": path}])))


@pytest.mark.parametrize(("path", "kind"), [("triton/0/k.cubin", "source"), ("ab/x.py", "triton")])
def test_gpu_code_cannot_be_passed_off_as_something_else(path: str, kind: str) -> None:
    """Differences of the GPU are fatal only for snapshots with GPU kernels."""
    refused(canonical(changed(("entries",), [json.loads(GOOD)["entries"][0] | {"path": path, "kind": kind}])))


@pytest.mark.parametrize("kind", sorted(NOT_KEPT))
def test_kinds_that_no_snapshot_keeps_are_refused(kind: Kind) -> None:
    refused(canonical(changed(("entries", 0, "kind"), kind.value)))


def many(count: int, size: int) -> Manifest:
    found = tuple(
        ManifestEntry(path=f"ab/{index:06}.py", kind=Kind.SOURCE, size=size, sha256="ab" * 32, executable=False)
        for index in range(count)
    )
    base = example()
    return Manifest(
        fingerprint=base.fingerprint,
        compile_id=None,
        created=base.created,
        tool=base.tool,
        parent=None,
        entries=found,
    )


def test_all_files_together_are_bounded() -> None:
    fits = manifest.MAX_TOTAL_BYTES // MAX_ENTRY_BYTES
    assert len(from_bytes(to_bytes(many(fits, MAX_ENTRY_BYTES)), origin="m.json").entries) == fits
    refused(to_bytes(many(fits + 1, MAX_ENTRY_BYTES)))


def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 10)
    from_bytes(to_bytes(many(10, 1)), origin="m.json")
    refused(to_bytes(many(11, 1)))


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 3_000_000 + b"[]]",
        b"{" + b",".join(b'"%d":{}' % index for index in range(700_000)) + b"}",
        b"[" * 5_000_000,
        b'{"a":' * 1_000_000,
        b'"' + b"x" * 5_000_000 + b'"',
        b"[" + b"1," * 3_000_000 + b"1]",
        b"-" + b"9" * 5_000_000,
        GOOD.replace(b"ab/x.py", b"a" * 5_000_000),
    ],
    ids=["lists", "objects", "deep lists", "deep objects", "string", "numbers", "one number", "path"],
)
def test_a_small_file_does_not_fill_the_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        refused(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(data)


@pytest.fixture
def filled(store: Store, tmp_path: Path) -> Store:
    helpers.make_cache(tmp_path / "cache")
    snapshot(store, tmp_path / "cache", name="run", fingerprint=HERE)
    return store


def planted(kind: str, path: Path) -> socket.socket | None:
    """Put something that is no plain file in the place of ``path``."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        here = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
        return listener
    else:
        path.symlink_to({"endless": "/dev/zero", "dangling": "/nowhere/at/all", "elsewhere": "/etc/passwd"}[kind])
    return None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "endless", "dangling", "elsewhere"])
def test_what_is_no_plain_file_in_a_store_is_refused_and_read_by_nobody(
    filled: Store, tmp_path: Path, kind: str
) -> None:
    id_ = filled.resolve("run")
    helpers.write(filled.root, f"snapshots/{id_}.sig", b"x")
    blob = next(path for path in sorted((filled.root / "blobs").rglob("*")) if path.is_file())
    victims = [filled.signature_path(id_), blob, filled.manifest_path(id_), filled.ref_path("run")]
    for index, victim in enumerate(victims):
        copy = tmp_path / f"copy{index}"
        shutil.copytree(filled.root, copy)
        if index:
            (copy / "snapshots" / f"{id_}.sig").unlink()
        where = victim.relative_to(filled.root)
        keep = planted(kind, copy / where)
        broken = Store(root=copy)
        named = [problem.path for problem in verify_store(copy).problems]
        if not (kind == "folder" and "blobs" in where.parts):  # an empty folder beside the blob that is missing
            assert where.as_posix() in named, where
        assert named
        list_snapshots(broken)
        best_match(broken, HERE, None)
        with pytest.raises((CorruptError, UsageError)):  # usage: a name that leads nowhere is none
            execute(plan_restore(broken, "run", tmp_path / "new", here=HERE))
        assert not (tmp_path / "new").exists()
        if keep:
            keep.close()


def test_a_blob_that_claims_little_and_holds_much(filled: Store, tmp_path: Path) -> None:
    """An honest blob of 64 MB under a manifest that says ten bytes: neither verify nor restore unpacks it."""
    big = bytes(64 << 20)
    cache = tmp_path / "big"
    helpers.write(cache, "ab/cbig.cpp", big)
    taken = snapshot(filled, cache, name="big", fingerprint=HERE)
    honest = filled.read_manifest(taken.id)
    lie = ManifestEntry(
        path="ab/cbig.cpp", kind=Kind.SOURCE, size=10, sha256=hashlib.sha256(big).hexdigest(), executable=False
    )
    data = to_bytes(_with(honest, lie))
    id_ = manifest.id_of(data)
    filled.manifest_path(id_).write_bytes(data)
    record_own(id_)
    filled.manifest_path(taken.id).unlink()
    filled.ref_path("big").unlink()
    tracemalloc.start()
    try:
        assert verify_store(filled.root).problems
        with pytest.raises(CorruptError):
            execute(plan_restore(filled, id_, tmp_path / "new", here=HERE))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert not (tmp_path / "new").exists()


def _with(honest: Manifest, *entries: ManifestEntry) -> Manifest:
    return Manifest(
        fingerprint=honest.fingerprint,
        compile_id=None,
        created=honest.created,
        tool=honest.tool,
        parent=None,
        entries=entries,
    )


def test_the_commands_say_one_line(tmp_path: Path) -> None:
    """A hostile store through the command line: exit 5, one line, no control characters, no traceback."""
    helpers.make_cache(tmp_path / "cache")
    cli = Cli(tmp_path)
    cli.run("snapshot", "--name", "run")
    for index, data in enumerate((NOT_CANONICAL["nan"], canonical(changed(("tool",), "\x1b[31m\nok")), b"[" * 100_000)):
        id_ = manifest.id_of(data)
        helpers.write(cli.store, f"snapshots/{id_}.json", data)
        helpers.write(cli.store, f"refs/bad{index}", f"{id_}\n".encode())
        done = cli.run("restore", f"bad{index}", "--to", str(tmp_path / "new"), rc=5)
        assert done.stderr.count("\n") == 1
        assert done.stderr.rstrip("\n").isprintable()
    listed = cli.run("list", rc=5)
    assert (listed.stdout + listed.stderr).replace("\n", "").isprintable()
    assert {one["name"]: one["fits"] for one in cli.json("list", rc=5)["snapshots"]}["run"] == "yes"
    assert len(cli.json("verify", rc=5)["store"]["problems"]) == 3


def test_entry_is_an_honest_example() -> None:
    assert from_bytes(GOOD, origin="m.json").entries == (entry("ab/x.py"), entry("cd/y.py"))
