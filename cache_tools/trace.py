"""What torch says about each look-up in its compile caches: hit, miss or bypass, the key, and the key's components.

In: the running process (``CacheTrace``), or a directory that ``TORCH_TRACE`` filled (``read_trace``). Out: one
``Lookup`` for each graph and cache. torch 2.11 sends these as structured-trace artifacts to the logger
``torch.__trace``: ``fx_graph_cache_{hit,miss,bypass}`` and ``aotautograd_cache_{hit,miss,bypass}``, JSON with ``key``
and ``components``, lines such as ``[hash] inductor_config[max_autotune]: False``. Nothing else is kept. It imports no
torch: the handler may be attached before torch is imported.
"""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from cache_tools.plainfile import open_plain
from cache_tools.told import ambient_autocast, functorch_options
from envguard.atomic import sha256_bytes
from envguard.errors import UsageError

LOGGER = "torch.__trace"
MAX_SHOWN = 400
"""Characters of a component's text that are kept: all of an input's metadata; hashes tell whether values are equal."""
SHORT_HASH = 16
_NAME = re.compile(r"(fx_graph|aotautograd)_cache_(hit|miss|bypass)")
_COMPONENT = re.compile(r"\[([a-z2-7]{51})\] ([^:\n]{1,120}): ?(.*)", re.DOTALL)
_PAYLOAD_START = re.compile(r"^[VIWEC]\d{4} ")


class Cache(enum.StrEnum):
    """The two caches that are looked up by graph; the values are their directories."""

    AOT = "aotautograd"
    FX = "fxgraph"


class Outcome(enum.StrEnum):
    """What a look-up came to."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"


class Component(NamedTuple):
    """One input of a key."""

    hash: str
    """Beginning of torch's hash of it."""
    shown: str
    """Beginning of its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """One look-up of one graph."""

    cache: Cache
    outcome: Outcome
    key: str | None
    """The directory of its entries; None for a bypass."""
    graph: str
    """torch's compile id, such as ``0/0``."""
    components: Mapping[str, Component]
    reason: str | None
    """Of a bypass; ``guard_miss`` for a miss of an entry that is there for other shapes."""
    saved_ms: int
    """What compiling took where the entry was made; 0 for a miss."""
    autocast: str | None = None
    """Where autocast was on around the graph, such as ``cpu bfloat16``."""


def parse_component(line: str) -> tuple[str, Component] | None:
    """Name and component of one of torch's lines; None for another text."""
    found = _COMPONENT.fullmatch(line)
    if found is None:
        return None
    shown = " ".join(found[3].split())
    return found[2], Component(found[1][:SHORT_HASH], shown[:MAX_SHOWN] if shown.isprintable() else "")


class CacheTrace(logging.Handler):
    """Collects look-ups while it is open: ``with CacheTrace() as trace: ...; trace.lookups``."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lookups: list[Lookup] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a cache artifact; torch calls it in the compiling thread, under the settings of that graph."""
        metadata: Mapping[str, Any] = getattr(record, "metadata", {})
        payload = getattr(record, "payload", None)
        if isinstance(payload, str) and (name := _artifact(metadata)):
            lookup = _lookup(name, metadata, payload, ambient_autocast())
            if lookup.cache is Cache.AOT:  # torch's line for it is one pickle of all options
                options = {f"functorch_config[{name}]": _option(text) for name, text in functorch_options().items()}
                lookup = replace(lookup, components={**lookup.components, **options})
            self.lookups.append(lookup)

    def __enter__(self) -> CacheTrace:
        logging.getLogger(LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(LOGGER).removeHandler(self)


def _option(text: str) -> Component:
    return Component(sha256_bytes(text.encode())[:SHORT_HASH], text[:MAX_SHOWN])


def read_trace(folder: Path) -> tuple[Lookup, ...]:
    """The look-ups in the files of a ``TORCH_TRACE`` directory, in the order of writing.

    Raises:
        UsageError: there is no such directory or no trace in it.
        CorruptError: a file of it is no plain file.
    """
    files = sorted(folder.glob("dedicated_log_torch_trace_*.log")) if folder.is_dir() else []
    if not files:
        raise UsageError(f"{folder} holds no trace of torch: run the program with TORCH_TRACE={folder}")
    return tuple(lookup for file in files for lookup in _read_file(file))


def _read_file(file: Path) -> Iterator[Lookup]:
    """A line of metadata, then the payload in lines that begin with a tab."""
    current: tuple[str, Mapping[str, Any]] | None = None
    payload: list[str] = []
    with os.fdopen(open_plain(file), errors="replace") as lines:
        for line in lines:
            if current and line.startswith("\t"):
                payload.append(line[1:])
                continue
            if current:
                yield _lookup(*current, "".join(payload), None)
            payload = []
            current = _metadata(line)
    if current:
        yield _lookup(*current, "".join(payload), None)


def _metadata(line: str) -> tuple[str, Mapping[str, Any]] | None:
    if not _PAYLOAD_START.match(line) or "_cache_" not in line:
        return None
    with contextlib.suppress(ValueError):  # a message of another kind with a brace in it
        metadata = json.loads(line[line.index("{") :])
        if isinstance(metadata, dict) and (name := _artifact(metadata)):
            return name, metadata
    return None


def _artifact(metadata: Mapping[str, Any]) -> str | None:
    artifact = metadata.get("artifact")
    name = artifact.get("name") if isinstance(artifact, dict) else None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


def _lookup(name: str, metadata: Mapping[str, Any], payload: str, autocast: str | None) -> Lookup:
    found = _NAME.fullmatch(name)
    assert found
    try:
        info: dict[str, Any] = json.loads(payload)
    except ValueError:  # the process died while it wrote
        info = {}
    lines = info.get("components") or ()
    saved_ms = info.get("time_saved_ms", info.get("time_saved_ns", 0) // 1_000_000)
    guard = info.get("cache_status_detailed") == "guard_miss"
    return Lookup(
        cache=Cache.FX if found[1] == "fx_graph" else Cache.AOT,
        outcome=Outcome(found[2]),
        key=info.get("key"),
        graph=f"{metadata.get('frame_id', '?')}/{metadata.get('frame_compile_id', '?')}",
        components=dict(parsed for line in lines if (parsed := parse_component(line))),
        reason=info.get("cache_bypass_reason") or ("guard_miss" if guard else None),
        saved_ms=int(saved_ms),
        autocast=autocast,
    )
