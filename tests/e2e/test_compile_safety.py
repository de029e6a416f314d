"""The commands around compiling as a user runs them: warm-up alone, training from a leaked state, a refused start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.conftest import ROOT, Lab

pytestmark = pytest.mark.slow


def test_warmup_alone_uses_the_same_cache_and_makes_no_run(lab: Lab, first_run: str) -> None:
    config = lab.config("warmed", steps=24)
    done = lab.run("warmup", config, "--set", f"run.dir={lab.path / 'warmed'}", "--json")
    account = json.loads(done.stdout)
    assert (account["graphs"], account["hits"], account["misses"]) == (1, 1, 0)
    [graph] = account["warmed"]
    assert (graph["name"], graph["hits"], graph["misses"]) == ("drafter step cpu 1x256+64 train", 1, 0)
    assert "graph drafter step cpu 1x256+64 train: from the cache" in done.stderr
    assert account["kernel"]["name"] == "torch's own"
    assert account["snapshot"] == lab.json(first_run, "compile.json")["snapshot"]
    assert not (lab.path / "warmed").exists()


def test_warmup_without_compiling_is_refused(lab: Lab) -> None:
    done = lab.run("warmup", lab.config("off"), "--set", "compile.enabled=false", expect=2)
    assert "nothing to warm up" in done.stderr


LEAK = """
import sys, torch
import torch.fx._symbolic_trace as tracing
if hasattr(tracing, "_set_is_fx_tracing"):
    tracing._set_is_fx_tracing(True)
else:
    tracing._is_fx_tracing_flag = True
tracing.CURRENT_PATCHER = tracing._Patcher()
with tracing._new_patcher() as patcher:
    patcher.patch_method(torch.nn.Module, "__call__", tracing.Tracer.trace, deduplicate=False)
    patcher.patches_made.clear()  # an end that never came
from dflash.cli.entry import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_leaked_state_is_repaired_and_training_proceeds(lab: Lab, first_run: str) -> None:
    config = lab.config("leaked", steps=24)
    arguments = ["train", config, "--set", f"run.dir={lab.path / 'leaked'}", "--max-steps", 2]
    done = subprocess.run(
        [sys.executable, "-c", LEAK, *map(str, arguments)],
        cwd=ROOT,
        env=lab.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "preflight: the leaked FX tracing flag was cleared" in done.stderr
    assert "preflight: the leaked FX patcher was dropped" in done.stderr
    assert "preflight: nn.Module.__call__, left patched by an FX trace, is torch's own again" in done.stderr
    alone, after = lab.json("leaked", "preflight.json")["stages"]
    assert len(alone["repaired"]) == 3
    assert (alone["status"], after["status"]) == ("pass", "pass")
    assert {hazard["id"] for hazard in after["handled"]} >= {"CMP022", "CMP023"}
    first = [json.dumps(line["loss"]) for line in lab.metrics(first_run)[:2]]
    assert [json.dumps(line["loss"]) for line in lab.metrics("leaked")] == first


def test_compiling_that_is_turned_off_stops_the_start(lab: Lab) -> None:
    done = lab.train("switched", expect=1, TORCH_COMPILE_DISABLE="1")
    assert "CMP014 TORCH_COMPILE_DISABLE=1: torch.compile does nothing" in done.stderr
    assert "Traceback" not in done.stderr
    assert lab.json("switched", "run.json")["status"] == "failed"


def test_a_state_that_cannot_be_repaired_stops_the_start_with_the_remedy(lab: Lab) -> None:
    code = 'import sys, torch\ntorch.compiler.set_stance("force_eager")\n' + LEAK.splitlines()[-2] + "\n"
    config = lab.config("stance")
    arguments = ["train", config, "--set", f"run.dir={lab.path / 'stance'}"]
    done = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(main(sys.argv[1:]))", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | lab.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: preflight (torch alone, torch " in done.stderr
    assert "CMP010 the stance is force_eager" in done.stderr
    assert 'torch.compiler.set_stance("default")' in done.stderr
    assert lab.json("stance", "run.json")["status"] == "failed"
