"""``docs/compile.md`` is true: its program runs as written, its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.compile.checks import BEHAVIOUR_CHECKS, STATE_CHECKS
from dflash.compile.gpu import CHECKS as GPU_CHECKS
from dflash.compile.machine import CHECKS as MACHINE_CHECKS
from dflash.compile.policy import POLICY

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compile.md").read_text(encoding="utf-8")


def policy_rows() -> list[str]:
    rows = [f"| `{ln.module}.{ln.name}` | {ln.value} | {ln.reason} | {ln.torch} |" for ln in POLICY.lines]
    return ["| setting | value | reason | torch |", "|---|---|---|---|", *rows]


def probe_rows() -> list[str]:
    checks = sorted([*STATE_CHECKS, *MACHINE_CHECKS, *BEHAVIOUR_CHECKS, *GPU_CHECKS], key=lambda check: check.id)
    rows = [f"| {check.id} | {check.summary} | {check.why} | {check.fix} |" for check in checks]
    return ["| id | asserts that | why | remedy |", "|---|---|---|---|", *rows]


@pytest.mark.parametrize("rows", [policy_rows, probe_rows])
def test_the_tables_are_those_of_the_code(rows: object) -> None:
    assert callable(rows)
    assert "\n".join(rows()) in PAGE


def test_every_name_that_it_gives_is_there() -> None:
    import importlib

    names = re.findall(r"`(accumulators|dense|kernels|policy|preflight|ranks|stall)\.(\w+)", PAGE)
    assert len(names) >= 8
    for module, name in names:
        assert hasattr(importlib.import_module(f"dflash.compile.{module}"), name), f"{module}.{name}"


@pytest.mark.slow
def test_its_program_runs_as_written(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    [promised] = re.findall(r"^```text\n(.*) …\n```$", PAGE, re.M)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [last] = done.stdout.splitlines()
    graphs = [line for line in done.stderr.splitlines() if line.startswith("graph ")]
    assert [line.partition(":")[0] for line in graphs] == ["graph 4 rows", "graph 6 rows"]
    assert all("compiled" in line for line in graphs)
    assert last.startswith(promised)
