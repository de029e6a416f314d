"""What the keys of a cache are made of, kept where it is needed later: in the run directory and in the cache itself.

In: ``Lookup`` of a run (trace.py). Out: ``cache_keys.json`` of the run, and one file ``cache_tools/<digest>.json`` in
the cache directory for entries that no such file tells of yet; it travels with snapshots. The hundreds of options that
all graphs of a process share are written once a file. torch keeps the components of fxgraph entries inside them as
text, so a cache that nobody recorded can be read too, without unpickling.
"""

from __future__ import annotations

import json
import pickletools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_tools.errors import CorruptError, storage_errors
from cache_tools.plainfile import read_plain
from cache_tools.trace import Cache, Component, Lookup, Outcome, parse_component
from envguard import atomic
from envguard.errors import UsageError

FILE = "cache_keys.json"
FOLDER = "cache_tools"
SCHEMA = 1
_MAX_BYTES = 256 << 20
Components = Mapping[str, Component]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKeys:
    """What a run asked of a cache and found there."""

    cache_dir: Path
    compile_id: str | None
    present: Mapping[Cache, frozenset[str]]
    """Keys that had entries before the first look-up."""
    lookups: tuple[Lookup, ...]
    used: Mapping[str, int]
    """Files that the run wrote or read, relative to the cache directory → bytes."""


def keys_present(cache_dir: Path) -> dict[Cache, frozenset[str]]:
    """The keys that have a directory under ``cache_dir``."""
    patterns = {Cache.AOT: "aotautograd/*", Cache.FX: "fxgraph/*/*"}
    return {cache: frozenset(path.name for path in cache_dir.glob(pattern)) for cache, pattern in patterns.items()}


def sizes_of(cache_dir: Path, paths: Iterable[str]) -> dict[str, int]:
    """Bytes of each of ``paths`` that is there."""
    return {path: (cache_dir / path).stat().st_size for path in sorted(paths) if (cache_dir / path).is_file()}


def write_run(folder: Path, keys: RunKeys) -> None:
    """Write ``cache_keys.json`` into a run directory, atomically."""
    table, rows = _pack([lookup.components for lookup in keys.lookups])
    document = {
        "schema": SCHEMA,
        "cache_dir": str(keys.cache_dir),
        "compile_id": keys.compile_id,
        "present": {cache.value: sorted(names) for cache, names in keys.present.items()},
        "lookups": [_outcome(lookup) | {"components": row} for lookup, row in zip(keys.lookups, rows, strict=True)],
        "components": table,
        "used": dict(keys.used),
    }
    with storage_errors(f"writing {folder / FILE}"):
        atomic.write_text(folder / FILE, json.dumps(document, separators=(",", ":")) + "\n")


def read_run(folder: Path) -> RunKeys:
    """Read ``cache_keys.json`` of a run directory.

    Raises:
        UsageError: there is none, or it is damaged or of another version.
    """
    path = folder / FILE
    try:
        document = read_document(path)
        if document["schema"] != SCHEMA:
            raise UsageError(
                f"{path} has schema {document['schema']!r:.20}, and this version reads {SCHEMA}: run again to write it"
            )
        table = _table(document)
        return RunKeys(
            cache_dir=Path(document["cache_dir"]),
            compile_id=document["compile_id"],
            present={Cache(cache): frozenset(names) for cache, names in document["present"].items()},
            lookups=tuple(_read_lookup(one, table) for one in document["lookups"]),
            used={str(name): int(size) for name, size in document["used"].items()},
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: run again to write it") from error


def read_document(path: Path) -> Any:
    """The JSON in a file of a run directory.

    Raises:
        UsageError: it is not there, is no plain file (a pipe would be waited for), or holds no JSON.
    """
    try:
        return json.loads(read_plain(path, limit=_MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} is not there: give the directory of a run that compiled (a trace of torch is for explain)"
        ) from error
    except CorruptError as error:
        raise UsageError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged, it holds no JSON: run again to write it") from error


def keep_in_cache(cache_dir: Path, lookups: Iterable[Lookup]) -> str | None:
    """Tell the cache of the keys that it does not know yet; the path of the new file in it, None if there is none."""
    known = read_cache(cache_dir)
    new = {
        (lookup.cache, lookup.key): lookup.components
        for lookup in lookups
        if lookup.key and lookup.components and (lookup.cache, lookup.key) not in known
    }
    if not new:
        return None
    ordered = sorted(new.items())
    table, rows = _pack([components for _, components in ordered])
    entries = [
        {"cache": cache.value, "key": key, "components": row}
        for ((cache, key), _), row in zip(ordered, rows, strict=True)
    ]
    text = json.dumps({"schema": SCHEMA, "entries": entries, "components": table}, separators=(",", ":"))
    path = f"{FOLDER}/{atomic.sha256_bytes(text.encode())[:32]}.json"
    with storage_errors(f"writing {cache_dir / path}"):
        (cache_dir / FOLDER).mkdir(mode=0o700, exist_ok=True)
        atomic.write_text(cache_dir / path, text)
    return path


def files_about(cache_dir: Path, keys: Iterable[str]) -> frozenset[str]:
    """The record files in ``cache_dir`` that tell of one of ``keys``: a snapshot of those entries takes them along."""
    wanted = set(keys)
    return frozenset(
        f"{FOLDER}/{file.name}" for file in _record_files(cache_dir) if wanted & {key for _, key in _read_record(file)}
    )


def read_cache(cache_dir: Path) -> dict[tuple[Cache, str], Components]:
    """What the record files of ``cache_dir`` tell; a damaged one tells nothing (``verify --live`` names it)."""
    known: dict[tuple[Cache, str], Components] = {}
    for file in _record_files(cache_dir):
        known.update(_read_record(file))
    return known


def read_entry(cache_dir: Path, key: str) -> Components:
    """The components that torch left inside the entries of an fxgraph key; empty where it left none.

    The pickle is disassembled, never executed.
    """
    folder = cache_dir / Cache.FX.value / key[1:3] / key
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        found: dict[str, Component] = {}
        try:
            for _, argument, _ in pickletools.genops(read_plain(file, limit=_MAX_BYTES)):
                if isinstance(argument, str) and (parsed := parse_component(argument)):
                    found.setdefault(*parsed)
        except (ValueError, OSError, CorruptError):  # damaged, or removed meanwhile: the next entry of the key may do
            continue
        if found:
            return found
    return {}


def _record_files(cache_dir: Path) -> list[Path]:
    return sorted(path for path in (cache_dir / FOLDER).glob("*.json") if path.is_file() and not path.is_symlink())


def _read_record(file: Path) -> dict[tuple[Cache, str], Components]:
    try:
        document = json.loads(file.read_bytes())
        if document["schema"] != SCHEMA:
            return {}
        table = _table(document)
        return {
            (Cache(one["cache"]), str(one["key"])): dict(table[index] for index in one["components"])
            for one in document["entries"]
        }
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, FileNotFoundError):
        return {}


def _pack(sets: list[Components]) -> tuple[list[tuple[str, str, str]], list[list[int]]]:
    """A table of distinct components, and for each set its rows."""
    table: dict[tuple[str, str, str], int] = {}
    rows = [
        [table.setdefault((name, *component), len(table)) for name, component in components.items()]
        for components in sets
    ]
    return list(table), rows


def _table(document: Mapping[str, Any]) -> list[tuple[str, Component]]:
    return [(str(name), Component(str(digest), str(shown))) for name, digest, shown in document["components"]]


def _outcome(lookup: Lookup) -> dict[str, object]:
    return {
        "cache": lookup.cache.value,
        "outcome": lookup.outcome.value,
        "key": lookup.key,
        "graph": lookup.graph,
        "reason": lookup.reason,
        "saved_ms": lookup.saved_ms,
        "autocast": lookup.autocast,
    }


def _read_lookup(one: Mapping[str, Any], table: list[tuple[str, Component]]) -> Lookup:
    return Lookup(
        cache=Cache(one["cache"]),
        outcome=Outcome(one["outcome"]),
        key=one["key"],
        graph=str(one["graph"]),
        components=dict(table[index] for index in one["components"]),
        reason=one["reason"],
        saved_ms=int(one["saved_ms"]),
        autocast=one["autocast"],
    )
