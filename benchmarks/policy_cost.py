"""What the compile policy costs: step time, peak memory and generated kernels, with it and without it.

    python benchmarks/policy_cost.py [--steps 200] [--work DIR] [--cpu]

In: one CUDA device. Out: talk on stderr, and last on stdout one JSON line. A drafter-shaped graph (the project's own
step: flex attention, linear layers, loss), large enough for the GPU to be what is waited for, runs ``--steps`` times in
fresh processes: without the policy and with it, each from an empty cache and once more from its warm one, alternating;
then with it in three threads of one process, each with a drafter and a CUDA stream of its own, beside a process with
the dynamic shapes that threads get without the policy. Exit 1 unless step time (the better median of each pair, by CUDA
events) and peak memory agree within 3 % and all but the last generated the same kernels. ``tokens_per_s`` answers the
question whether force_compile_during_fx_trace, or what, made an old run crawl at 4.6 Ktok/s.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flexlab import ROOT, apply_policy, child, kernel_digests, say, scratch

STALL = 420.0
NEAR = 0.03
THREADS = 3
HOWS = ("without", "with", "threads", "dynamic")
STAGES = (
    (("without", False),),
    (("with", False),),
    (("without", True),),
    (("with", True),),
    (("threads", False), ("dynamic", False)),
)
"""Which process runs when, and whether from the cache that its first one has filled; those of a stage side by side."""
SIZES = {
    "cuda": {"hidden": 2048, "layers": 3, "tokens": 8192, "slots": 512, "block": 16, "vocab": 32_000},
    "cpu": {"hidden": 32, "layers": 1, "tokens": 64, "slots": 4, "block": 4, "vocab": 97},
}


class Drafting:
    """A drafter with random weights, a random batch, and the step that training runs."""

    def __init__(self, device: Any, step: Any, mask: Any) -> None:
        import torch

        from dflash.anchors import make_batch
        from dflash.attention import AttentionPlan, make_dense_plan
        from dflash.data import make_row
        from dflash.drafter import Drafter, DrafterShape

        size = SIZES[device.type]
        self.tokens, block, hidden = size["tokens"], size["block"], size["hidden"]
        shape = DrafterShape(
            num_layers=size["layers"],
            block_size=block,
            mask_token_id=3,
            target_layer_ids=(1, 3),
            num_target_layers=6,
            target_hidden_size=hidden,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_attention_heads=hidden // 16 if device.type == "cpu" else hidden // 64,
            num_key_value_heads=1 if device.type == "cpu" else hidden // 128,
            head_dim=16 if device.type == "cpu" else 64,
            vocab_size=size["vocab"],
            rope_theta=10_000.0,
            rms_norm_eps=1e-6,
            max_position_embeddings=self.tokens,
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        generator = torch.Generator().manual_seed(0)
        self.drafter = Drafter(shape)
        self.drafter.reset_parameters(generator)
        self.drafter.to(device=device, dtype=dtype)
        ids = torch.randint(4, size["vocab"], (self.tokens,), generator=generator).tolist()
        row = make_row(0, [(ids[: self.tokens // 2], 4), (ids[self.tokens // 2 :], 4)], self.tokens)
        anchors = torch.linspace(4, self.tokens - block - 1, size["slots"]).long()
        drawn = (anchors, torch.ones(size["slots"], dtype=torch.bool))
        batch = make_batch([row], [drawn], block_size=block, mask_token_id=3, gamma=7.0).to(device)
        table = torch.randn(size["vocab"], hidden, generator=generator).mul(0.02).to(device=device, dtype=dtype)
        features = torch.randn(1, self.tokens, 2 * hidden, generator=generator).to(device=device, dtype=dtype)
        if mask is None:
            plan = make_dense_plan(batch.documents, batch.anchors, batch.anchor_valid, block)
        else:
            plan = AttentionPlan("flex", mask(batch.documents, batch.anchors, batch.anchor_valid, block))
        given = (
            features,
            batch.positions,
            batch.block_tokens,
            batch.block_positions,
            batch.labels,
            batch.weights,
            plan,
        )
        self.call = lambda: step(self.drafter, table, table, *given)

    def run(self) -> float:
        """One step without an optimizer; returns the loss."""
        loss = self.call().loss
        loss.backward()
        for parameter in self.drafter.parameters():
            parameter.grad = None
        return float(loss.item())


def run_child(how: str, steps: int, device_type: str) -> dict[str, Any]:
    """One process. ``how``: without, with, threads (three of them, with the policy), or dynamic (with it, one)."""
    faulthandler.dump_traceback_later(STALL, exit=True)
    begun_at = time.monotonic()
    import torch
    from torch._dynamo.utils import counters

    from dflash.attention import make_block_mask
    from dflash.step import drafter_step

    with_policy = how != "without"
    apply_policy(with_policy)
    if not with_policy:
        torch._inductor.config.cpp_cache_precompile_headers = False  # not one of the settings in question
    device = torch.device(device_type, 0) if device_type == "cuda" else torch.device("cpu")
    mask = torch.compile(make_block_mask, fullgraph=True, dynamic=False) if device_type == "cuda" else None
    step = torch.compile(drafter_step, fullgraph=True, dynamic=how == "dynamic")
    imported = time.monotonic()
    num_threads = THREADS if how == "threads" else 1
    work = [Drafting(device, step, mask) for _ in range(num_threads)]
    built = time.monotonic()
    times: list[list[float]] = [[] for _ in work]
    losses = [0.0] * num_threads
    first = [0.0] * num_threads
    spans = [[0.0, 0.0] for _ in work]

    def one(number: int) -> None:
        apply_policy(with_policy)
        stream: Any = contextlib.nullcontext()
        if device_type == "cuda":
            torch.cuda.set_device(device)
            stream = torch.cuda.stream(torch.cuda.Stream()) if num_threads > 1 else stream
        with stream:
            begun = time.monotonic()
            work[number].run()
            first[number] = time.monotonic() - begun
            for _ in range(5):
                work[number].run()
            if number == 0 and device_type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            spans[number][0] = time.perf_counter()
            for _ in range(steps):
                losses[number], seconds = timed(work[number])
                times[number].append(seconds)
            spans[number][1] = time.perf_counter()

    def timed(drafting: Drafting) -> tuple[float, float]:
        """The loss, and the seconds of one step on the device."""
        if device_type != "cuda":
            begun = time.perf_counter()
            return drafting.run(), time.perf_counter() - begun
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        loss = drafting.run()
        end.record()
        end.synchronize()
        return loss, start.elapsed_time(end) / 1e3

    threads = [threading.Thread(target=one, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = max(end for _, end in spans) - min(begun for begun, _ in spans)
    aot = counters["aot_autograd"]
    return {
        "median_ms": round(statistics.median(seconds for own in times for seconds in own) * 1e3, 3),
        "first_step_s": [round(each, 1) for each in first],
        "peak_mib": round(torch.cuda.max_memory_allocated(device) / 2**20, 1) if device_type == "cuda" else None,
        "loss": losses,
        "tokens_per_s": round(num_threads * steps * work[0].tokens / wall),
        "imports_s": round(imported - begun_at, 1),
        "build_s": round(built - imported, 1),
        "aot_misses": aot["autograd_cache_miss"] + aot["autograd_cache_bypass"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--work", type=Path, help="directory for caches (default: a temporary one)")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--child", choices=HOWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options.child, options.steps, "cpu" if options.cpu else "cuda")))
        return 0
    results: dict[str, dict[str, Any]] = {}
    kernels: dict[str, list[str]] = {}
    with scratch(options.work) as made:

        def run(how: str, again: bool) -> None:
            arguments = ["--child", how, "--steps", options.steps, *(["--cpu"] if options.cpu else [])]
            name = f"{how}, warm" if again else how
            results[name] = child(__file__, *arguments, cache=made / how, limit=STALL + 60)
            kernels[name] = kernel_digests(made / how)
            same = set(kernels[name]) == set(kernels["without"])
            files = f"{len(kernels[name])} generated files{', the same as without' * same}"
            say(f"{name}: {json.dumps(results[name])}, {files}")

        for stage in STAGES:
            with ThreadPoolExecutor(len(stage)) as pool:
                list(pool.map(run, *zip(*stage, strict=True)))
    print(json.dumps(report := judge(results, kernels)))
    return 0 if report["holds"] else 1


def judge(results: dict[str, dict[str, Any]], kernels: dict[str, list[str]]) -> dict[str, Any]:
    """The claims."""
    judged = {name: result for name, result in results.items() if name != "dynamic"}
    ended = all(result["ended"] == "ok" for result in judged.values())
    best = {
        how: {what: min(judged[name][what] for name in (how, f"{how}, warm")) for what in ("median_ms", "peak_mib")}
        for how in ("without", "with")
        if ended and judged[how]["peak_mib"]
    }
    ratio = {what: round(best["with"][what] / best["without"][what], 4) for what in ("median_ms", "peak_mib") if best}
    same = {name: kernels[name] == kernels["without"] for name in judged if name != "threads"}
    same["threads"] = set(kernels["threads"]) == set(kernels["without"])
    return {
        "schema": 2,
        "sizes": SIZES,
        **results,
        "ratio": ratio,
        "same_kernels": same,
        "kernels": {name: len(each) for name, each in kernels.items()},
        "holds": ended and all(abs(value - 1) <= NEAR for value in ratio.values()) and all(same.values()),
    }


if __name__ == "__main__":
    assert ROOT.is_dir()
    sys.exit(main())
