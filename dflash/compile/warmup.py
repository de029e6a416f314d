"""Compile every graph a run needs, once, in one thread, before step 0.

In: graphs that run the very functions that training calls (torch's key holds their argument names), on real batches.
Out: each compiled forward and backward, gradients cleared, with its seconds, hits and misses. After it,
``policy.forbid_recompiles`` turns any later compilation into an error. The optimizer is not compiled, so it has no
graph. Ranks take turns through ``ranks.first_rank_first``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dflash.compile.account import CompileAccount, CompileWatch
from dflash.compile.stall import end_process, watch_stall
from dflash.console import say, stage
from dflash.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """One thing to compile."""

    name: str
    run: Callable[[], None]
    """Runs it once, forward and backward, leaving no gradient behind."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError(f"Graph: got name={self.name!r}, allowed is text")
        if not callable(self.run):
            raise ConfigError(f"Graph {self.name}: got run={self.run!r}, allowed is something to call")


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmed:
    """One graph, and where it came from."""

    name: str
    seconds: float
    graphs: int
    """Compiled by Dynamo, from torch's cache or not."""
    hits: int
    misses: int
    """Of torch's AOT cache; a bypass counts as a miss."""
    fx_hits: int
    fx_misses: int
    """Of inductor's cache, forward and backward apart."""
    native_builds: int
    """Calls of the C++ compiler; a graph that hits has some where another environment compiled it."""

    def text(self) -> str:
        """One line for a person."""
        if self.misses:
            found = "compiled"
        elif self.hits:
            found = "from the cache" + (f", but for {self.native_builds} C++ builds" if self.native_builds else "")
        elif self.graphs:
            found = "compiled without torch's cache, which is off"
        else:
            found = "nothing was compiled"
        return f"graph {self.name}: {found}, {self.seconds:.1f} s ({self.hits} hits, {self.misses} misses)"


def start_compiler() -> None:
    """Do what torch otherwise does within its first compilation, whatever the graph and even where the cache hits.

    Some 300 imports, digests of torch's and triton's own sources (``torch_key`` and ``get_system`` of
    torch/_inductor/codecache.py, part of every key), the names of the functions of nn/functional.py, a pool of
    compiling processes: 4 s on a slow CPU. Ranks that wait for another one's compiling do it meanwhile. CUDA is
    initialised where there is a GPU.
    """
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.funcname_cache import get_funcname
    from torch._inductor.async_compile import maybe_warm_pool
    from torch._inductor.codecache import CacheBase, torch_key
    from torch._inductor.codegen.common import init_backend_registration
    from torch.nn import functional

    lookup_backend("inductor")  # imports every backend that torch brings
    maybe_warm_pool()
    import torch._inductor.compile_fx  # noqa: F401

    init_backend_registration()
    torch_key()
    CacheBase.get_system()
    get_funcname(functional.__file__, 1)


def warm_up(
    graphs: Iterable[Graph] | Graph,
    watch: CompileWatch,
    *,
    stall_seconds: float = 1800.0,
    on_stall: Callable[[str, str], None] = end_process,
) -> tuple[Warmed, ...]:
    """Run every graph once, in order; ``on_stall`` is called where one takes longer than ``stall_seconds``.

    Raises:
        ConfigError: ``stall_seconds`` is no time that a clock can wait, or there is something that is no ``Graph``
            or no ``CompileWatch``.
    """
    graphs = tuple(graphs) if isinstance(graphs, Iterable) else (graphs,)
    if strange := [graph for graph in graphs if not isinstance(graph, Graph)]:
        raise ConfigError(f"warm_up: got {strange[0]!r}, allowed are Graphs")
    if not isinstance(watch, CompileWatch):
        raise ConfigError(f"warm_up: got watch={watch!r}, allowed is a CompileWatch of the cache directory")
    if not graphs:
        return ()
    warmed: list[Warmed] = []
    start_compiler()
    with stage(f"compile {', '.join(graph.name for graph in graphs)}", steps=len(graphs)) as advance:
        for graph in graphs:
            before, started = watch.account(), time.monotonic()
            with watch_stall(f"compiling graph {graph.name}", stall_seconds, on_stall):
                try:
                    with watch.graph(graph.name):
                        graph.run()
                except Exception as error:
                    error.add_note(f"while graph {graph.name} was compiled, {len(warmed) + 1} of {len(graphs)}")
                    raise
            warmed.append(_difference(graph.name, time.monotonic() - started, before, watch.account()))
            say(warmed[-1].text())
            advance()
    return tuple(warmed)


def _difference(name: str, seconds: float, before: CompileAccount, after: CompileAccount) -> Warmed:
    return Warmed(
        name=name,
        seconds=round(seconds, 3),
        graphs=after.graphs - before.graphs,
        hits=after.hits - before.hits,
        misses=after.misses - before.misses,
        fx_hits=after.fx_hits - before.fx_hits,
        fx_misses=after.fx_misses - before.fx_misses,
        native_builds=after.native_builds - before.native_builds,
    )
