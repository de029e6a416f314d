"""The graphs of a configuration: devices x shapes x modes, and the room that they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dflash.compile.shapes import graphs_of_one_function, needed_graphs
from dflash.config import CompileConfig, Config, DataConfig

ROOT = Path(__file__).parents[3]
CONFIG = Config(data=DataConfig(path="x", row_tokens=64, anchors_per_row=4, rows_per_step=2))


def test_sdpa_needs_one_graph_and_flex_one_more_for_its_mask() -> None:
    assert [spec.name for spec in needed_graphs(CONFIG, ["cpu"], attention="sdpa")] == [
        "drafter step cpu 2x64+64 train"
    ]
    names = [spec.name for spec in needed_graphs(CONFIG, ["cuda"], attention="flex")]
    assert names == ["block mask cuda 2x64+64 evaluate", "drafter step cuda 2x64+64 train"]


def test_devices_and_modes_multiply() -> None:
    devices = ["cuda:0", "cuda:1", "cuda:2"]
    specs = needed_graphs(CONFIG, devices, attention="flex", modes=("train", "evaluate"))
    assert len(specs) == 3 + 3 * 2
    assert len({spec.name for spec in specs}) == len(specs)
    assert graphs_of_one_function(specs) == 6


def test_without_compiling_there_is_no_graph() -> None:
    off = CONFIG.model_copy(update={"compile": CompileConfig(enabled=False)})
    assert needed_graphs(off, ["cpu"], attention="sdpa") == ()
    assert graphs_of_one_function(()) == 1


def test_it_needs_no_torch() -> None:
    code = "import sys, dflash.compile.shapes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
