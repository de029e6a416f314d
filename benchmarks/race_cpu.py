"""The race on a CPU: one thread compiles new shapes while others make warm calls, with the policy and without.

    python benchmarks/race_cpu.py --runs 10 --without-runs 10 [--parallel 2]

In: nothing. Out: one JSON line last on stdout: processes failed of those run, for each setting, and what they died of.
Each run is a fresh process. A start race shows nothing (everyone passes torch's entry check before anyone traces); warm
calls that arrive during a compile do. Exit 1 unless all runs with the policy are right and 8 of 10 without it fail.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEW_SHAPES = 4
WARM_THREADS = 2
LIMIT = 240  # seconds of a process


def child(with_policy: bool) -> dict[str, Any]:
    """One process: what its threads met; where they hang, their stacks."""
    faulthandler.dump_traceback_later(LIMIT - 30, exit=True)
    import torch
    import torch._dynamo

    from dflash.compile import policy
    from dflash.compile.accumulators import hold_accumulators

    if with_policy:
        policy.apply()
    else:
        torch._dynamo.config.recompile_limit = 64  # not the fault that is shown here

    module = torch.nn.Linear(8, 8)
    # All threads train the same parameters, which is another way to hang (see compile/accumulators.py).
    held = hold_accumulators(module.parameters()) if with_policy else ()

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(module(x)).square().sum()

    # Not inductor: its C++ compiler would be most of the time, and it is not where the race is.
    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")

    def call(rows: int) -> None:
        x = torch.arange(rows * 8, dtype=torch.float32).view(rows, 8).div(rows * 8).requires_grad_()
        out = compiled(x)
        out.backward()
        exact = torch.nn.functional.gelu(torch.nn.functional.linear(x, module.weight, module.bias)).square().sum()
        if not torch.allclose(out, exact, rtol=1e-4):
            raise ArithmeticError(f"{out.item()} instead of {exact.item()}")

    call(1)  # the graph of the warm callers
    stop = threading.Event()
    counts: collections.Counter[str] = collections.Counter()

    def warm() -> None:
        if with_policy:
            policy.apply()
        while not stop.is_set():
            try:
                call(1)
                counts["warm calls right"] += 1
            except Exception as error:
                counts[f"warm: {first_line(error)}"] += 1

    def cold() -> None:
        if with_policy:
            policy.apply()
        for rows in range(2, 2 + NEW_SHAPES):
            try:
                call(rows)
                counts["cold calls right"] += 1
            except Exception as error:
                counts[f"cold: {first_line(error)}"] += 1

    threads = [threading.Thread(target=warm) for _ in range(WARM_THREADS)]
    compiling = threading.Thread(target=cold)
    for thread in (*threads, compiling):
        thread.start()
    compiling.join()
    stop.set()
    for thread in threads:
        thread.join()
    del held
    return dict(counts)


def first_line(error: BaseException) -> str:
    """The kind of an error and the beginning of its words."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:120]


def run_child(with_policy: bool) -> dict[str, Any]:
    """A fresh process, told on stderr when it ends; a crash and a hang are results too."""
    result = watched(with_policy)
    print(f"{'with' if with_policy else 'without'}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def watched(with_policy: bool) -> dict[str, Any]:
    """Run and judge one process."""
    command = [sys.executable, __file__, "--child", "with" if with_policy else "without"]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": True, "why": f"hung for {LIMIT} s", "seconds": LIMIT}
    seconds = round(time.monotonic() - started, 1)
    if done.returncode:
        if "Timeout (" in done.stderr:
            return {"failed": True, "why": "hung", "stacks": done.stderr[-6000:], "seconds": seconds}
        last = done.stderr.strip().splitlines()[-1:] or [""]
        return {"failed": True, "why": f"exit {done.returncode} {last[0]}"[:160], "seconds": seconds}
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    wrong = {name: count for name, count in counts.items() if not name.endswith("right")}
    complete = counts.get("cold calls right") == NEW_SHAPES and counts.get("warm calls right", 0) > 0
    return {"failed": bool(wrong) or not complete, "why": wrong or None, "counts": counts, "seconds": seconds}


def environment() -> dict[str, str]:
    """This environment with one OpenMP thread and our packages."""
    import os

    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Failures of several runs."""
    return {
        "runs": len(results),
        "failed": sum(result["failed"] for result in results),
        "why": [result["why"] for result in results if result["failed"]],
        "warm_calls_right": sum(result.get("counts", {}).get("warm calls right", 0) for result in results),
        "seconds": [result["seconds"] for result in results],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="with the policy")
    parser.add_argument("--without-runs", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=1, help="processes side by side")
    parser.add_argument("--child", choices=("with", "without"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child == "with")))
        return 0
    with ThreadPoolExecutor(options.parallel) as pool:
        without = summary(list(pool.map(run_child, [False] * options.without_runs)))
        with_policy = summary(list(pool.map(run_child, [True] * options.runs)))
    holds = with_policy["failed"] == 0 and without["failed"] >= 0.8 * without["runs"]
    print(json.dumps({"schema": 1, "without": without, "with": with_policy, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
