"""Several threads on one GPU call freshly compiled flex attention, forward and backward, at the same instant.

    python benchmarks/race.py --threads 4 --runs 20 [--without-runs 10] [--parallel 5] [--work DIR] [--cpu]

In: one CUDA device. Out: talk on stderr, and last on stdout one JSON line. Each run is a fresh process with an empty
cache, watched: a hang is a result. With the policy every run has to finish and be right (relative error < 0.01 of
output and gradients); without it torch 2.11 hangs at least 9 times of 10. Then a cache that one thread has warmed is
raced twice: all hits, no growth. Exit 1 where that does not hold. ``--cpu`` debugs the script (its race cannot hang).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flexlab import TOLERANCE, AttentionStep, apply_policy, cache_files, child, compiled_attention, growth, say, scratch

STALL = 150.0
"""Seconds before the watchdog ends a process: a cold thread takes 8 to 28 s, and imports up to 60 side by side."""


def run_child(how: str, num_threads: int, device_type: str, stall: float) -> dict[str, Any]:
    """One process. ``how``: with or without the policy, or serial (the policy, one thread, every shape)."""
    faulthandler.dump_traceback_later(stall, exit=True)
    import torch
    from torch._dynamo.utils import counters

    with_policy = how != "without"
    apply_policy(with_policy)
    device = torch.device(device_type, 0) if device_type == "cuda" else torch.device("cpu")
    attention = compiled_attention(device_type, with_policy=with_policy)
    base, step = (1024, 256) if device_type == "cuda" else (64, 16)
    work = [AttentionStep(attention, device, base + step * number) for number in range(num_threads)]
    results: list[dict[str, Any]] = [{} for _ in work]
    start = threading.Barrier(num_threads)

    def one(number: int, wait: bool) -> None:
        apply_policy(with_policy)
        if device_type == "cuda":
            torch.cuda.set_device(device)
        if wait:
            start.wait()
        begun = time.monotonic()
        try:
            out = work[number].run()
            results[number] = {"error": work[number].error(out), "seconds": round(time.monotonic() - begun, 2)}
        except Exception as error:
            results[number] = {"raised": f"{type(error).__name__}: {error}"[:200]}

    if how == "serial":
        for number in range(num_threads):
            one(number, wait=False)
    else:
        threads = [threading.Thread(target=one, args=(number, True)) for number in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    aot, fx = counters["aot_autograd"], counters["inductor"]
    return {
        "threads": results,
        "hits": aot["autograd_cache_hit"],
        "misses": aot["autograd_cache_miss"] + aot["autograd_cache_bypass"],
        "fx_hits": fx["fxgraph_cache_hit"],
        "fx_misses": fx["fxgraph_cache_miss"] + fx["fxgraph_cache_bypass"],
    }


def is_right(result: dict[str, Any]) -> bool:
    """Ended, and every thread matches the reference."""
    return result["ended"] == "ok" and all(each.get("error", 1.0) < TOLERANCE for each in result["threads"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--runs", type=int, default=20, help="with the policy")
    parser.add_argument("--without-runs", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=5, help="processes side by side")
    parser.add_argument("--stall", type=float, default=STALL)
    parser.add_argument("--work", type=Path, help="directory for caches (default: a temporary one)")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--child", choices=("with", "without", "serial"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    if options.child:
        print(json.dumps(run_child(options.child, options.threads, device, options.stall)))
        return 0
    with scratch(options.work) as made:
        report = race(options, made, ["--cpu"] if options.cpu else [])
    print(json.dumps(report))
    return 0 if report["holds"] else 1


def race(options: argparse.Namespace, work: Path, more: list[str]) -> dict[str, Any]:
    """All runs; ``work`` holds a cache for each."""

    def one(how: str, cache: str) -> dict[str, Any]:
        arguments = ["--child", how, "--threads", options.threads, "--stall", options.stall, *more]
        limit = options.stall + 120
        # Many processes share the cores: each compiles kernels with a few workers, not with one a core.
        result = child(__file__, *arguments, cache=work / cache, limit=limit, TORCHINDUCTOR_COMPILE_THREADS="4")
        say(f"{how} ({cache}): {json.dumps({k: v for k, v in result.items() if k != 'stderr'})}")
        return result

    with ThreadPoolExecutor(options.parallel) as pool:
        # The hangs first: they hold their places longest.
        hanging = [pool.submit(one, "without", f"without-{number}") for number in range(options.without_runs)]
        ending = [pool.submit(one, "with", f"with-{number}") for number in range(options.runs)]
        bare, fine = [each.result() for each in hanging], [each.result() for each in ending]
    warm = []
    one("serial", "warm")
    for number in range(2):
        before = cache_files(work / "warm")
        result = one("with", "warm")
        warm.append(
            {
                "right": is_right(result),
                "hits": result.get("hits"),
                "misses": result.get("misses"),
                "fx_misses": result.get("fx_misses"),
                "grew": growth(before, cache_files(work / "warm")),
                "start": number + 1,
            }
        )
    hangs = [result for result in bare if result["ended"] == "hung"]
    right = sum(map(is_right, fine))
    warm_holds = all(
        each["right"] and each["hits"] >= options.threads and each["misses"] == 0 and each["grew"]["files"] == 0
        for each in warm
    )
    return {
        "schema": 1,
        "threads": options.threads,
        "with": {
            "runs": len(fine),
            "right": right,
            "worst_error": max((t.get("error", 1.0) for r in fine for t in r.get("threads", [{}])), default=None),
            "seconds": sorted(result["seconds"] for result in fine),
            "not_right": [result for result in fine if not is_right(result)][:3],
        },
        "without": {
            "runs": len(bare),
            "hung": len(hangs),
            "ended": sorted(result["ended"] for result in bare),
            "stacks_of_the_first": hangs[0]["stderr"][-3000:] if hangs else None,
        },
        "warm": warm,
        "holds": right == len(fine) and warm_holds and len(hangs) >= 0.9 * len(bare),
    }


if __name__ == "__main__":
    sys.exit(main())
