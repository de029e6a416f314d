"""Warm steps on one GPU while another GPU's thread compiles: none may raise.

    python benchmarks/race_two_gpus.py [--steps 10000] [--work DIR] [--cpu]

In: two CUDA devices. Out: talk on stderr, and last on stdout one JSON line. One process, a thread a device: the second
device's graph is warmed, then the first device's thread compiles one new shape after the other, forward and backward,
until the other has made ``--steps`` warm steps meanwhile. With the policy 0 of them raise; without it, in a second
process, torch 2.11 raises. Exit 1 where that does not hold. ``--cpu`` debugs the script with one device twice.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flexlab import AttentionStep, apply_policy, child, compiled_attention, say, scratch

STALL = 400.0
MOST_SHAPES = 64


def run_child(how: str, steps: int, device_type: str) -> dict[str, Any]:
    """One process."""
    faulthandler.dump_traceback_later(STALL, exit=True)
    import torch
    import torch.fx._symbolic_trace as tracing

    with_policy = how == "with"
    apply_policy(with_policy)
    devices = [torch.device("cuda", 0), torch.device("cuda", 1)] if device_type == "cuda" else [torch.device("cpu")] * 2
    attention = compiled_attention(device_type, with_policy=with_policy)
    base, apart = (1024, 256) if device_type == "cuda" else (64, 16)
    warm_work = AttentionStep(attention, devices[1], base)
    warm_error = warm_work.error(warm_work.run())
    warm: collections.Counter[str] = collections.Counter()
    cold: collections.Counter[str] = collections.Counter()
    stop = threading.Event()
    slowest = 0.0

    def set_up(device: Any) -> None:
        apply_policy(with_policy)
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def keep_stepping() -> None:
        nonlocal slowest
        set_up(devices[1])
        while not stop.is_set():
            begun = time.monotonic()
            try:
                warm_work.run()
                warm["right"] += 1
            except Exception as error:
                warm[f"{type(error).__name__}: {str(error)[:80]}"] += 1
            slowest = max(slowest, time.monotonic() - begun)

    def keep_compiling() -> None:
        set_up(devices[0])
        for number in range(1, MOST_SHAPES + 1):
            work = AttentionStep(attention, devices[0], base + apart * number)
            try:
                out = work.run()
                cold["right" if work.error(out) < 0.01 else "wrong"] += 1
            except Exception as error:
                cold[f"{type(error).__name__}: {str(error)[:80]}"] += 1
            if warm.total() >= steps:
                return

    stepping, compiling = threading.Thread(target=keep_stepping), threading.Thread(target=keep_compiling)
    begun = time.monotonic()
    stepping.start()
    compiling.start()
    compiling.join()
    stop.set()
    stepping.join()
    flag = getattr(tracing, "_get_is_fx_tracing", lambda: tracing._is_fx_tracing_flag)()
    return {
        "warm": dict(warm),
        "raised": warm.total() - warm["right"],
        "cold": dict(cold),
        "warm_error": warm_error,
        "slowest_warm_step_s": round(slowest, 3),
        "compiling_s": round(time.monotonic() - begun, 1),
        "flag_left": flag,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--work", type=Path, help="directory for caches (default: a temporary one)")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--child", choices=("with", "without"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options.child, options.steps, "cpu" if options.cpu else "cuda")))
        return 0
    results = {}
    with scratch(options.work) as made:
        for how in ("with", "without"):
            more = ["--cpu"] if options.cpu else []
            arguments = ["--child", how, "--steps", options.steps, *more]
            results[how] = child(__file__, *arguments, cache=made / how, limit=STALL + 60)
            say(f"{how}: {json.dumps(results[how])}")
    fine, bare = results["with"], results["without"]
    holds = (
        fine["ended"] == "ok"
        and fine["raised"] == 0
        and fine["warm"]["right"] >= options.steps
        and set(fine["cold"]) == {"right"}
        and (bare["ended"] != "ok" or bare["raised"] > 0)
    )
    print(json.dumps({"schema": 1, **results, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
