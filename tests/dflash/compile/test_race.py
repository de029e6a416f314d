"""One thread compiles new shapes while others make warm calls, in fresh processes: the benchmark, made small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.fx._symbolic_trace as tracing

from dflash.compile.behaviour import _settings_are_shared

SETTINGS_ARE_SHARED = _settings_are_shared()
ROOT = Path(__file__).parents[3]
FLAG_IS_SHARED = not hasattr(tracing, "_is_fx_tracing_tls")


@pytest.mark.slow
def test_with_the_policy_no_process_fails_and_without_it_every_one_does() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "race_cpu.py", "--runs", "4", "--without-runs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["with"]["failed"] == 0, result
    assert result["with"]["warm_calls_right"] > 0
    if FLAG_IS_SHARED:
        assert result["without"]["failed"] == 2, result
        assert done.returncode == 0


SHAPES = """
import json, sys, threading
import torch
from torch._dynamo.utils import counters
from dflash.compile import policy

def prepare():
    policy.apply()
    if sys.argv[2] == "without":
        torch._dynamo.config.automatic_dynamic_shapes = True

def attend(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).sin()

compiled = torch.compile(attend, fullgraph=True, dynamic=False)

def step(number):
    leaves = [torch.randn(1, 2, 64 + 16 * number, 16, requires_grad=True) for _ in range(3)]
    compiled(*leaves).sum().backward()

prepare()
if sys.argv[1] == "serial":
    for number in range(4):
        step(number)
else:
    start = threading.Barrier(4)
    def run(number):
        prepare()
        start.wait()
        step(number)
    threads = [threading.Thread(target=run, args=(3 - number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(json.dumps([counters["aot_autograd"][f"autograd_cache_{what}"] for what in ("hit", "miss")]))
"""


def start_shapes(how: str, which: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", SHAPES, how, which],
        cwd=ROOT,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts: list[int] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.mark.slow
def test_threads_hit_what_one_thread_compiled() -> None:
    """dynamic=False is a setting of the process in torch 2.11: four threads at once made dynamic graphs and missed."""
    assert start_shapes("serial", "with") == [0, 4]
    assert [start_shapes("threads", "with") for _ in range(3)] == [[4, 0]] * 3
    if SETTINGS_ARE_SHARED:
        assert any(start_shapes("threads", "without") != [4, 0] for _ in range(6))
