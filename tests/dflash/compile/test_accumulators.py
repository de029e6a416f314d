"""Two threads that share parameters hang while a compile has switched anomaly mode on, unless accumulators are held."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from dflash.compile.accumulators import hold_accumulators
from dflash.errors import ConfigError

ROOT = Path(__file__).parents[3]

# Anomaly mode stands for a compile in a third thread, which switches it on and off too quickly to hit every time. The
# function holds the interpreter's lock when it looks for the accumulators, as compiled functions do.
SHARED = """
import sys, threading
import torch
from dflash.compile.accumulators import hold_accumulators
from dflash.compile.stall import watch_stall

class Step(torch.autograd.Function):
    @staticmethod
    def forward(context, weight):
        return weight.sum()
    @staticmethod
    def backward(context, grad):
        return grad.expand(8, 8)

weight = torch.nn.Parameter(torch.ones(8, 8))
held = hold_accumulators([weight]) if sys.argv[1] == "held" else None
torch.autograd.set_detect_anomaly(True, check_nan=False)
def work():
    for _ in range(3000):
        Step.apply(weight).backward()
threads = [threading.Thread(target=work) for _ in range(2)]
with watch_stall("sharing", float(sys.argv[2])):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


def share(how: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHARED, how, str(seconds)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_shared_parameters_hang_without_and_not_with_held_accumulators() -> None:
    hung = (share("bare", 15) for _ in range(10))  # a busy machine may run one thread after the other
    assert any(each.returncode == 1 and " in work" in each.stderr for each in hung)
    done = share("held", 200)
    assert done.stdout.strip() == "done", done.stderr


def test_accumulators_are_those_that_a_backward_uses() -> None:
    linear = torch.nn.Linear(2, 2)
    linear.bias.requires_grad_(False)
    with torch.no_grad():
        [held] = hold_accumulators(linear.parameters())
    assert held.variable is linear.weight
    graph = linear(torch.ones(1, 2)).grad_fn
    assert held in [node for node, _ in graph.next_functions[2][0].next_functions]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(mode: Callable[[], AbstractContextManager[object]]) -> None:
    linear = torch.nn.Linear(2, 2)
    with mode():
        assert len(hold_accumulators(linear.parameters())) == 2


def test_a_tensor_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="got a tensor, allowed are several"):
        hold_accumulators(torch.ones(3, requires_grad=True))
