"""Compile every graph a run needs, once, in one thread, before step 0.

In: a ``Trainer``'s step functions and one real batch. Out: graphs compiled forward and backward through the very
functions that training calls (torch's key holds their argument names), gradients cleared, seconds noted. After it,
``policy.forbid_recompiles`` turns any later compilation into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash.compile.account import CompileWatch
from dflash.console import stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """One thing to compile."""

    name: str
    run: Callable[[], None]
    """Runs it once, forward and backward, leaving no gradient behind."""


def warm_up(graphs: Sequence[Graph], watch: CompileWatch) -> None:
    """Run every graph once, in order."""
    with stage(f"compile {', '.join(graph.name for graph in graphs)}", steps=len(graphs)) as advance:
        for graph in graphs:
            with watch.graph(graph.name):
                graph.run()
            advance()
