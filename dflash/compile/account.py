"""What compiling cost and what it used: torch's counters, seconds, native builds, and the cache entries of this run.

In: this process after its warm-up. Out: ``CompileAccount``. ``hits`` and ``misses`` are torch's AOT counters, a bypass
counted as a miss; ``fx`` are the inductor graphs below them (forward and backward apart).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileAccount:
    """Told in one line and written to ``compile.json``."""

    graphs: int
    hits: int
    misses: int
    fx_hits: int
    fx_misses: int
    native_builds: int
    """Shared objects loaded from the cache directory that were not there before: calls of the C++ compiler."""
    seconds: float
    """Of all warm-ups."""
    per_graph: dict[str, float]
    """Warm-up name -> seconds."""


@dataclass(slots=True)
class CompileWatch:
    """Measures warm-ups; make it before the first one."""

    cache_dir: Path
    per_graph: dict[str, float] = field(default_factory=dict)
    _before: frozenset[Path] = frozenset()

    def __post_init__(self) -> None:
        self._before = frozenset(self.cache_dir.rglob("*.so")) if self.cache_dir.is_dir() else frozenset()

    @contextmanager
    def graph(self, name: str) -> Iterator[None]:
        """Time one warm-up."""
        started = time.monotonic()
        yield
        self.per_graph[name] = round(time.monotonic() - started, 3)

    def account(self) -> CompileAccount:
        """The state of the counters now."""
        aot, fx = counters["aot_autograd"], counters["inductor"]
        hits = aot["autograd_cache_hit"]
        misses = aot["autograd_cache_miss"] + aot["autograd_cache_bypass"]
        return CompileAccount(
            graphs=hits + misses,
            hits=hits,
            misses=misses,
            fx_hits=fx["fxgraph_cache_hit"],
            fx_misses=fx["fxgraph_cache_miss"] + fx["fxgraph_cache_bypass"],
            native_builds=len([so for so in self._loaded() if so not in self._before]),
            seconds=round(sum(self.per_graph.values()), 3),
            per_graph=dict(self.per_graph),
        )

    def used_entries(self) -> frozenset[str]:
        """Cache files, relative to the cache directory, that this process compiled or hit.

        torch records the keys of both pickle caches (``torch.compiler.save_cache_artifacts``); loaded shared objects
        and generated modules are read from the process itself; autotuning results are those younger than the start.
        """
        files: set[Path] = set()
        artifacts = torch.compiler.save_cache_artifacts()
        keys: dict[str, list[str]] = artifacts[1].artifacts if artifacts else {}
        for kind, folder in (("inductor", "fxgraph"), ("aot_autograd", "aotautograd")):
            for key in keys.get(kind, ()):
                files.update(self._files_of(folder, key))
        for shared_object in self._loaded():
            stem = shared_object.name.partition(".")[0]
            files.update(shared_object.parent.glob(f"{stem}.*"))
        files.update(self._generated_modules())
        return frozenset(
            path.relative_to(self.cache_dir).as_posix() for path in files if path.is_file() and not path.is_symlink()
        )

    def _files_of(self, folder: str, key: str) -> Iterator[Path]:
        inner = (self.cache_dir / folder / key[1:3] / key) if folder == "fxgraph" else (self.cache_dir / folder / key)
        return inner.iterdir() if inner.is_dir() else iter(())

    def _loaded(self) -> set[Path]:
        root = str(self.cache_dir.resolve())
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if root in line}
        return {self.cache_dir / Path(path).relative_to(root) for path in paths if path.endswith(".so")}

    def _generated_modules(self) -> Iterator[Path]:
        for module in list(sys.modules.values()):
            file: Any = getattr(module, "__file__", None)
            if isinstance(file, str) and file.startswith(f"{self.cache_dir}/"):
                path = Path(file)
                yield path
                yield from path.parent.glob("*.best_config")
