"""A few seconds of ``benchmarks/cache_concurrency.py``: eight processes, one store, one cache, some of them killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cache_concurrency.py"


def test_eight_processes_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--minutes", "0.15", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "errors: 0\nproblems of the store: 0\nbad files of the cache: 0\n" in done.stdout
