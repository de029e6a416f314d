"""The warm-up of a training: compile every graph, choose kernel options, account for it, snapshot what is new.

In: a built ``Training`` and the cache as it was opened. Out: ``Compiled``, and a line of talk a graph and one for all.
It writes no file of the run (``launch.py`` does). Importing it imports no torch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_tools.fingerprint import Fingerprint
from cache_tools.records import RunKeys
from dflash.compile import policy
from dflash.compile.cache import CacheState, keep_entries
from dflash.config import Config
from dflash.console import say


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """What the warm-up found and made."""

    training: Any
    """With the kernel options that work on this GPU."""
    account: dict[str, Any]
    """For ``compile.json``."""
    keys: RunKeys | None
    """Of every graph, for ``cache_tools.records``; None where nothing is compiled."""


def warm_up(
    training: Any,
    state: CacheState | None,
    here: Fingerprint,
    imported: float,
    *,
    on_stall: Callable[[str, str], None],
) -> Compiled:
    """Compile every graph, tell it in one line, snapshot what is new."""
    from dflash import train
    from dflash.compile.account import CompileWatch
    from dflash.compile.kernels import KernelChoice, choose
    from dflash.compile.warmup import Warmed
    from dflash.compile.warmup import warm_up as compile_graphs

    config: Config = training.config
    if not config.compile.enabled:
        return Compiled(training=training, account={"schema": 1, "enabled": False}, keys=None)
    watch = CompileWatch(state.directory if state else _cache_dir())

    def attempt(kernel: KernelChoice) -> tuple[Any, tuple[Warmed, ...]]:
        chosen = dataclasses.replace(training, kernel=kernel)
        graphs = train.graphs(chosen)
        return chosen, compile_graphs(graphs, watch, stall_seconds=config.compile.stall_seconds, on_stall=on_stall)

    (training, warmed), kernel = choose(attempt)
    for name, words in kernel.refused:
        say(f"flex attention: {name} kernel options do not fit this GPU ({words})")
    account = watch.account()
    cold_ms = round(account.seconds * 1000) if account.hits == 0 else None
    keys, told = watch.keys(state.compile_id if state else None), watch.told()
    kept = keep_entries(state, frozenset(keys.used), told=told, build_ms=cold_ms) if state else None
    fingerprint = here.with_told(told)
    known = state.match.manifest.build_ms if state and state.match and account.hits else None
    cold = f" (cold was {known / 1000:.1f} s)" if known is not None else ""
    built = f", {account.native_builds} C++ builds" if account.native_builds and not account.misses else ""
    shown = f", snapshot {kept[:12]}" if kept else ""
    say(
        f"compile: {account.graphs} graphs, {account.hits} hits, {account.misses} misses, "
        f"{account.seconds:.1f} s{cold}{built}{shown}"
    )
    document = {
        "schema": 1,
        "graphs": account.graphs,
        "hits": account.hits,
        "misses": account.misses,
        "fx": {"hits": account.fx_hits, "misses": account.fx_misses},
        "native_builds": account.native_builds,
        "seconds": account.seconds,
        "saved_seconds": account.saved_seconds,
        "per_graph": account.per_graph,
        "warmed": [dataclasses.asdict(graph) for graph in warmed],
        "kernel": kernel.document(),
        "policy": policy.as_record(policy.POLICY),
        "since_imports": round(time.monotonic() - imported, 3),
        "snapshot": kept,
        "restored": state.match.id if state and state.match else None,
        "restore": dataclasses.asdict(state.restore) if state else None,
        "compile_id": state.compile_id if state else None,
        "fingerprint": {"key_version": fingerprint.key_version, "values": dict(fingerprint.values)},
        "torch": torch_facts(),
    }
    return Compiled(training=training, account=document, keys=keys)


def torch_facts() -> dict[str, Any]:
    """What only a process with torch knows about its compilations, beyond the fingerprint."""
    import torch
    import torch._inductor.config

    return {
        "num_threads": torch.get_num_threads(),
        "vec_isa_trusted": torch._inductor.config.cpp.vec_isa_ok,
        "precompiled_headers": torch._inductor.config.cpp_cache_precompile_headers,
    }


def _cache_dir() -> Path:
    import cache_tools

    return cache_tools.default_cache_dir()
