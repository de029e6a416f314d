"""What compiling cost and what the cache did for it: torch's counters, its look-ups, seconds, native builds.

In: this process during and after its warm-up. Out: ``CompileAccount``, and ``RunKeys`` for ``cache_keys.json``.
``hits`` and ``misses`` are torch's AOT counters, a bypass counted as a miss; ``fx`` are the inductor graphs below them
(forward and backward apart).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch._dynamo.utils import counters

from cache_tools import records
from cache_tools.stats import saved_seconds
from cache_tools.told import tell
from cache_tools.trace import Cache, CacheTrace
from cache_tools.used import loaded, used_entries
from dflash.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileAccount:
    """Told in one line and written to ``compile.json``."""

    graphs: int
    """Compiled by Dynamo; more than hits and misses where torch's cache is off."""
    hits: int
    misses: int
    fx_hits: int
    fx_misses: int
    saved_seconds: float
    """Compiling that hits made unnecessary, by torch's own account of when the entries were made."""
    native_builds: int
    """Shared objects loaded from the cache directory that were not there before: calls of the C++ compiler."""
    seconds: float
    """Of all warm-ups."""
    per_graph: dict[str, float]
    """Warm-up name -> seconds."""


@dataclass(slots=True)
class CompileWatch:
    """Measures warm-ups; make it before the first one, after the cache was restored."""

    cache_dir: Path
    per_graph: dict[str, float] = field(default_factory=dict)
    trace: CacheTrace = field(default_factory=CacheTrace)
    _before: frozenset[Path] = frozenset()
    _present: dict[Cache, frozenset[str]] = field(default_factory=dict)
    _graphs: int = 0
    """Those of Dynamo that were there before: the preflight's tries leave some."""

    def __post_init__(self) -> None:
        if not isinstance(self.cache_dir, (str, os.PathLike)) or not os.fspath(self.cache_dir):
            raise ConfigError(f"CompileWatch: got {self.cache_dir!r}, allowed is the path of the cache directory")
        self.cache_dir = Path(self.cache_dir)
        self._graphs = counters["stats"]["unique_graphs"]
        self._present = records.keys_present(self.cache_dir)
        self._before = frozenset(self.cache_dir.rglob("*.so")) if self.cache_dir.is_dir() else frozenset()

    @contextmanager
    def graph(self, name: str) -> Iterator[None]:
        """Time one warm-up."""
        started = time.monotonic()
        with self.trace:
            yield
        self.per_graph[name] = round(self.per_graph.get(name, 0.0) + time.monotonic() - started, 3)

    def account(self) -> CompileAccount:
        """The state of the counters now."""
        aot, fx = counters["aot_autograd"], counters["inductor"]
        hits = aot["autograd_cache_hit"]
        misses = aot["autograd_cache_miss"] + aot["autograd_cache_bypass"]
        return CompileAccount(
            graphs=max(hits + misses, counters["stats"]["unique_graphs"] - self._graphs),
            hits=hits,
            misses=misses,
            fx_hits=fx["fxgraph_cache_hit"],
            fx_misses=fx["fxgraph_cache_miss"] + fx["fxgraph_cache_bypass"],
            saved_seconds=round(saved_seconds(tuple(self.trace.lookups)), 3),
            native_builds=len([so for so in loaded(self.cache_dir) if so not in self._before]),
            seconds=round(sum(self.per_graph.values()), 3),
            per_graph=dict(self.per_graph),
        )

    def keys(self, compile_id: str | None) -> records.RunKeys:
        """What this run asked of the cache and used of it; tells the cache of keys that are new to it."""
        records.keep_in_cache(self.cache_dir, self.trace.lookups)
        return records.RunKeys(
            cache_dir=self.cache_dir,
            compile_id=compile_id,
            present=self._present,
            lookups=tuple(self.trace.lookups),
            used=records.sizes_of(self.cache_dir, used_entries(self.cache_dir)),
        )

    def told(self) -> dict[str, str | None]:
        """What only this process knows of the fingerprint."""
        return tell(lookup.autocast for lookup in self.trace.lookups)
