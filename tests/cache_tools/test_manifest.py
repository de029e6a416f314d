"""Canonical bytes, and manifests that want to do harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cache_tools.errors import CorruptError
from cache_tools.kinds import Kind
from cache_tools.manifest import Manifest, ManifestEntry, differs_only_in_origin, from_bytes, id_of, to_bytes

from . import helpers

DIGEST = "ab" * 32


def entry(path: str) -> ManifestEntry:
    return ManifestEntry(path=path, kind=Kind.SOURCE, size=3, sha256=DIGEST, executable=False)


def example() -> Manifest:
    return Manifest(
        fingerprint=helpers.fingerprint(gpu_name=None),
        compile_id="two layers",
        created="2026-11-29T16:20:00.000000Z",
        tool="dflash-toolkit 0.1.0",
        parent=DIGEST,
        entries=(entry("ab/x.py"), entry("cd/y.py")),
    )


def test_round_trip_and_one_form_only() -> None:
    data = to_bytes(example())
    assert data.isascii()
    assert b" :" not in data
    assert from_bytes(data, origin="m") == example()
    assert id_of(data) == id_of(to_bytes(from_bytes(data, origin="m")))


def test_kernels_are_told_only_where_there_are_some() -> None:
    assert b"kernels" not in to_bytes(example())
    some = example().__replace__(kernels=3)
    assert from_bytes(to_bytes(some), origin="m") == some
    assert some.gpu_kernels
    assert not example().gpu_kernels
    assert not differs_only_in_origin(to_bytes(some), example(), origin="m")
    assert not differs_only_in_origin(to_bytes(example()), some, origin="m")
    assert differs_only_in_origin(to_bytes(some), some.__replace__(build_ms=7), origin="m")


Change = Callable[[dict[str, Any]], object]


def first(**fields: object) -> Change:
    return lambda document: document["entries"][0].update(fields)


def twice(second: str) -> Change:
    return lambda document: document["entries"][1].update(path=second)


HOSTILE: dict[str, Change] = {
    "parent folder": first(path="../x.py"),
    "inner parent folder": first(path="ab/../../x.py"),
    "dot": first(path="./x.py"),
    "absolute": first(path="/etc/passwd"),
    "empty part": first(path="ab//x.py"),
    "backslash": first(path="ab\\x.py"),
    "drive": first(path="C:x.py"),
    "newline": first(path="ab/x.py\n"),
    "nul": first(path="ab/x\0.py"),
    "not ascii": first(path="ab/\u00e9.py"),
    "not text": first(path=7),
    "deep": first(path="/".join("a" * 30)),
    "long": first(path="a" * 300),
    "negative size": first(size=-1),
    "zero size": first(size=0),
    "huge size": first(size=1 << 60),
    "size as text": first(size="3"),
    "size as truth": first(size=True),
    "size as fraction": first(size=3.0),
    "unknown kind": first(kind="virus"),
    "kind never kept": first(kind="lock"),
    "short digest": first(sha256="ab"),
    "digest in capitals": first(sha256="AB" * 32),
    "exec as number": first(exec=1),
    "extra key in an entry": first(mode=0o4755),
    "path twice": twice("ab/x.py"),
    "case collision": twice("ab/X.py"),
    "case collision of folders": twice("AB/y.py"),
    "file as folder": twice("ab/x.py/z.py"),
    "not sorted": lambda document: document["entries"].reverse(),
    "unknown format": lambda document: document.update(format=2),
    "format as truth": lambda document: document.update(format=True),
    "extra key": lambda document: document.update(hook="rm"),
    "no kernels": lambda document: document.update(kernels=0),
    "fewer than no kernels": lambda document: document.update(kernels=-1),
    "kernels as truth": lambda document: document.update(kernels=True),
    "kernels without end": lambda document: document.update(kernels=1 << 60),
    "kernels null": lambda document: document.update(kernels=None),
    "missing key": lambda document: document.pop("parent"),
    "parent no id": lambda document: document.update(parent="../x"),
    "created no time": lambda document: document.update(created="yesterday"),
    "entries no list": lambda document: document.update(entries={}),
    "fingerprint incomplete": lambda document: document["fingerprint"]["values"].pop("cpu_isa"),
    "fingerprint value no text": lambda document: document["fingerprint"]["values"].update(cpu_isa=1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests_are_refused_with_the_file_named(name: str) -> None:
    document = json.loads(to_bytes(example()))
    HOSTILE[name](document)
    data = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    with pytest.raises(CorruptError, match=r"^store/m\.json"):
        from_bytes(data, origin="store/m.json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format":' + b"9" * 5000 + b"}",
        to_bytes(example()) + b"\n",
        to_bytes(example()).replace(b',"format":1', b',"format":1,"format":1'),
        json.dumps(json.loads(to_bytes(example()))).encode(),
    ],
    ids=["empty", "null", "list", "binary", "deep", "big number", "new line", "duplicate key", "spaces"],
)
def test_bytes_that_are_not_canonical_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"m\.json"):
        from_bytes(data, origin="m.json")
