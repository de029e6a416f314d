"""One thread compiles new shapes while others make warm calls, in fresh processes: the benchmark, made small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.fx._symbolic_trace as tracing

ROOT = Path(__file__).parents[3]
FLAG_IS_SHARED = not hasattr(tracing, "_is_fx_tracing_tls")


@pytest.mark.slow
def test_with_the_policy_no_process_fails_and_without_it_every_one_does() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "race_cpu.py", "--runs", "4", "--without-runs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["with"]["failed"] == 0, result
    assert result["with"]["warm_calls_right"] > 0
    if FLAG_IS_SHARED:
        assert result["without"]["failed"] == 2, result
        assert done.returncode == 0
