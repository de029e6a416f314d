"""How long the command line takes to answer: medians over whole processes, against what Python itself costs.

In: the interpreter that runs this file. Out: a table on stdout: the floor (``python -c pass``, ``import typer``), each
command, its limit, and the gap; exit 1 where a median exceeds its limit. Run it on an idle machine:
``python benchmarks/cli_latency.py``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROCESSES = 15
BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[1]

# Name, command, limit in seconds (None: a floor, not a claim).
ROWS: tuple[tuple[str, list[str], float | None], ...] = (
    ("python -c pass", [sys.executable, "-c", "pass"], None),
    ("python -c 'import typer'", [sys.executable, "-c", "import typer"], None),
    ("dflash --help", [str(BIN / "dflash"), "--help"], 0.25),
    ("dflash doctor", [str(BIN / "dflash"), "doctor"], 0.60),
    ("dflash doctor --json", [str(BIN / "dflash"), "doctor", "--json"], 0.60),
    ("envguard check", [str(BIN / "envguard"), "check"], None),
)


def measure(command: list[str]) -> list[float]:
    """Wall seconds of ``PROCESSES`` runs, after one that warms the disk cache."""
    # With this developer's variable every start would compile our sources anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds: list[float] = []
    for _ in range(PROCESSES + 1):
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main() -> int:
    """Measure and print; 1 where a limit is exceeded."""
    print(f"Python {sys.version.split()[0]}, {PROCESSES} processes each, seconds")
    print(f"{'':<26}{'median':>8}{'min':>8}{'max':>8}{'limit':>8}{'gap':>8}")
    is_slow = False
    for name, command, limit in ROWS:
        seconds = measure(command)
        median = statistics.median(seconds)
        tail = f"{limit:>8.2f}{limit - median:>8.3f}" if limit is not None else ""
        print(f"{name:<26}{median:>8.3f}{min(seconds):>8.3f}{max(seconds):>8.3f}{tail}", flush=True)
        is_slow = is_slow or (limit is not None and median > limit)
    return int(is_slow)


if __name__ == "__main__":
    raise SystemExit(main())
