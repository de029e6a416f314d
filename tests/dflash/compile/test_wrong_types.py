"""What the compile interface cannot use is one line that says what it got and what is allowed, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflash.compile import policy, preflight
from dflash.compile.account import CompileWatch
from dflash.compile.accumulators import hold_accumulators
from dflash.compile.ranks import first_rank_first
from dflash.compile.warmup import Graph, warm_up
from dflash.errors import ConfigError

ANY: Any = None
STRICT: Any = "strict"
THREE: Any = 3
EMPTY: Any = ""
LINEAR: Any = torch.nn.Linear(1, 1)


def thread_of_no_policy() -> None:
    thread = policy.PolicyThread(target=print)
    thread.policy = STRICT
    thread.start()


def enter(rank: Any, barrier: Any) -> None:
    with first_rank_first(rank, barrier):
        pass


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: policy.apply(STRICT), r"policy\.apply: got 'strict', allowed is a Policy"),
        (thread_of_no_policy, "PolicyThread: got 'strict', allowed is a Policy"),
        (lambda: policy.POLICY.with_room(True), "with_room: got True graphs, allowed"),
        (lambda: preflight.require(ANY), r"preflight\.require: got None, allowed is what preflight\.check returns"),
        (lambda: warm_up([Graph(name="rows", run=print)], ANY), "warm_up: got watch=None, allowed is a CompileWatch"),
        (lambda: Graph(name=THREE, run=print), "Graph: got name=3, allowed is text"),
        (lambda: CompileWatch(ANY), "CompileWatch: got None, allowed is the path"),
        (lambda: CompileWatch(EMPTY), "CompileWatch: got '', allowed is the path"),
        (lambda: hold_accumulators(LINEAR), "hold_accumulators: got a Linear, allowed are several"),
        (lambda: enter(0, None), "first_rank_first: got barrier=None, allowed is something to call"),
    ],
)
def test_a_wrong_type_is_one_line(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)
