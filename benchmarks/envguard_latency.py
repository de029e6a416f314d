"""How long envguard takes on a real environment, whole processes, against torch's own ``collect_env`` in the same run.

    python benchmarks/envguard_latency.py [--processes N] [--deep]

In: the interpreter that runs this file, in the project's environment (about 5 GB with torch). Out: a table on stdout
(floors, each command, its limit), and as the last line one JSON object with the medians, the ratios and the claims;
exit 1 where a claim does not hold. envguard gets a cache directory of its own, which is removed before each first run.
Run it on an idle machine: a figure of a busy one says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
LIMITS = {"fast": 0.15, "standard": 0.6, "standard first": 3.0}
"""Seconds."""
AT_LEAST_FASTER = 10.0
"""The fast tier, than ``collect_env``."""


def main() -> int:
    options = parse()
    cache = Path(tempfile.mkdtemp(prefix="envguard-bench-"))
    try:
        medians = measure_all(cache, options.processes, with_deep=options.deep)
    finally:
        shutil.rmtree(cache)
    claims = {f"{name} under {limit} s": medians[name] < limit for name, limit in LIMITS.items()}
    faster = medians["collect_env"] / medians["fast"]
    claims[f"fast at least {AT_LEAST_FASTER:.0f} times faster than collect_env"] = faster >= AT_LEAST_FASTER
    ratios = {"collect_env / fast": round(faster, 1), "fast / python": round(medians["fast"] / medians["python"], 1)}
    print(json.dumps({"schema": 1, "seconds": medians, "ratios": ratios, "claims": claims, "load": os.getloadavg()}))
    return 0 if all(claims.values()) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=15, help="runs of each command (default: %(default)s)")
    parser.add_argument("--deep", action="store_true", help="also hash every file, once (seconds a gigabyte)")
    return parser.parse_args()


def measure_all(cache: Path, processes: int, *, with_deep: bool) -> dict[str, float]:
    """Medians by name, each printed as it is known."""
    guard = [str(Path(PYTHON).with_name("envguard"))]
    own = cache / "envguard"

    def forget() -> None:
        shutil.rmtree(own, ignore_errors=True)

    print(f"Python {sys.version.split()[0]}, {processes} processes each, load {os.getloadavg()[0]:.1f}; seconds")
    print(f"{'':<24}{'median':>8}{'min':>8}{'max':>8}{'limit':>8}", flush=True)
    rows: list[tuple[str, list[str], int, Callable[[], None] | None]] = [
        ("python", [PYTHON, "-c", "pass"], processes, None),
        ("import packaging", [PYTHON, "-c", "import packaging.version, packaging.specifiers"], processes, None),
        ("fast", [*guard, "doctor"], processes, None),
        ("standard first", [*guard, "check"], max(3, processes // 3), forget),
        ("standard", [*guard, "check"], processes, None),
        ("collect_env", [PYTHON, "-W", "ignore", "-m", "torch.utils.collect_env"], max(3, processes // 3), None),
    ]
    if with_deep:
        rows.append(("deep", [*guard, "check", "--deep"], 1, forget))
    medians: dict[str, float] = {}
    for name, command, count, before in rows:
        seconds = measure(command, cache, count, before)
        medians[name] = round(statistics.median(seconds), 4)
        limit = f"{LIMITS[name]:>8.2f}" if name in LIMITS else ""
        print(f"{name:<24}{medians[name]:>8.3f}{min(seconds):>8.3f}{max(seconds):>8.3f}{limit}", flush=True)
    return medians


def measure(command: list[str], cache: Path, count: int, before: Callable[[], None] | None) -> list[float]:
    """Wall seconds of ``count`` runs, after one that warms the disk cache (the stat cache too, unless ``before`` drops
    it).

    Raises:
        CalledProcessError: a command fails; a drifted environment measures nothing.
    """
    # With this developer's variable every start would compile our sources anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["XDG_CACHE_HOME"] = str(cache)
    environment["UV_CACHE_DIR"] = os.environ.get("UV_CACHE_DIR", os.path.expanduser("~/.cache/uv"))
    seconds: list[float] = []
    for _ in range(count + 1):
        if before is not None:
            before()
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


if __name__ == "__main__":
    raise SystemExit(main())
