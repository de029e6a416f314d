"""SIGKILL of `dflash train` before each of its writes to the run directory, and what a resume makes of it.

In: nothing but the examples. Out: a line for each write, then how many resumes failed, and of how many the losses or
the end differ from those of a run that was left alone; exit 1 unless both are 0. A write is an open for writing, a
rename, a removal, a mkdir or an rmdir below the run directory (Python's own audit events), or a line of the metrics
(before and after it). Each takes two processes, about 40 s on two cores: ``python benchmarks/train_kills.py``. It does
not simulate a power loss.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXACT = ("step", "loss", "accepted_length", "accuracy", "lr", "grad_norm", "epoch")
CONFIG = """
[run]
steps = 5
checkpoint_every = 2
keep_checkpoints = 1
[target]
features = "cached"
[data]
path = "{data}"
row_tokens = 256
anchors_per_row = 8
[drafter]
num_layers = 1
block_size = 8
[optim]
lr = 3e-3
"""
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "dflash.metric"}


def child(directory: str, kill_at: int, arguments: list[str]) -> int:
    """``dflash`` in this process, killed before its ``kill_at``-th write below ``directory`` (0: never)."""
    writes = 0

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal writes
        changes = event in CHANGES or (event == "open" and details[2] & (os.O_WRONLY | os.O_RDWR))
        if not changes or not str(details[0]).startswith(directory):
            return
        writes += 1
        if writes == kill_at:
            print(f"{event} {str(details[0]).removeprefix(directory)}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    from dflash.cli.entry import main as dflash
    from dflash.runs.record import RunDirectory

    metric = RunDirectory.metric

    def audited(run: RunDirectory, values: dict[str, Any]) -> None:
        sys.audit("dflash.metric", f"{directory}/before line {values['step']}")
        metric(run, values)
        sys.audit("dflash.metric", f"{directory}/after line {values['step']}")

    RunDirectory.metric = audited  # type: ignore[method-assign]
    return dflash(arguments)


def outcome(run: Path) -> tuple[list[list[Any]], str, list[str]]:
    """The exact part of the metrics, how the run ended, and its checkpoints."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    status = json.loads((run / "run.json").read_text())["status"]
    return [[line[key] for key in EXACT] for line in lines], status, sorted(os.listdir(run / "checkpoints"))


class Lab:
    """A folder with prepared data, one compile cache and one feature cache for every process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = os.environ | {
            "XDG_CACHE_HOME": str(path / "xdg-cache"),
            "XDG_DATA_HOME": str(path / "xdg-data"),
            "TORCHINDUCTOR_CACHE_DIR": str(path / "inductor"),
            "DFLASH_CACHE_STORE": str(path / "store"),
        }
        responses = (ROOT / "examples" / "data" / "train_responses.jsonl").read_text().split("\n")[:8]
        (path / "responses.jsonl").write_text("\n".join(responses) + "\n")
        (path / "config.toml").write_text(CONFIG.format(data=path / "prepared"))
        done = self.dflash(0, "data", "prepare", path / "responses.jsonl", path / "prepared")
        if done.returncode:
            raise SystemExit(done.stderr)

    def dflash(self, kill_at: int, *arguments: object) -> subprocess.CompletedProcess[str]:
        """The command in a process of its own."""
        command = [sys.executable, __file__, "--child", self.path / "run", kill_at, "--", *arguments]
        return subprocess.run(
            list(map(str, command)), cwd=ROOT, env=self.environ, capture_output=True, text=True, check=False
        )

    def train(self, kill_at: int) -> subprocess.CompletedProcess[str]:
        """A training; it resumes where there is something to resume."""
        arguments = (self.path / "config.toml", "--set", f"run.dir={self.path / 'run'}", "--resume")
        return self.dflash(kill_at, "train", *arguments)


def main() -> int:
    """Kill, resume, compare, for every write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=1, help="the write to begin with")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], int(sys.argv[3]), sys.argv[5:])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab(Path(scratch))
        for _ in range(2):  # the first one compiles; what the second says is the reference
            shutil.rmtree(lab.path / "run", ignore_errors=True)
            done = lab.train(0)
            if done.returncode:
                raise SystemExit(done.stderr)
        expected = outcome(lab.path / "run")
        failed = differ = 0
        at = options.first
        while True:
            shutil.rmtree(lab.path / "run")
            killed = lab.train(at)
            if killed.returncode == 0:
                break
            if killed.returncode != -signal.SIGKILL:
                raise SystemExit(killed.stderr)
            resumed = lab.train(0)
            verdict = "ok"
            if resumed.returncode:
                failed += 1
                verdict = f"exit {resumed.returncode}: {resumed.stderr.strip().splitlines()[-1]}"
            elif outcome(lab.path / "run") != expected:
                differ += 1
                verdict = f"differs: {outcome(lab.path / 'run')}"
            print(f"{at:4} {killed.stdout.strip().splitlines()[-1]:60} {verdict}", flush=True)
            at += 1
        print(f"{at - options.first} writes; resumes that failed: {failed}, that differ: {differ}")
    return 1 if failed or differ else 0


if __name__ == "__main__":
    sys.exit(main())
