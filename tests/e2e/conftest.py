"""The installed command line, a real target, real text: one lab for the session, compiled once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DFLASH = Path(sys.executable).parent / "dflash"

CONFIG = """
[run]
steps = {steps}
checkpoint_every = 4
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


@dataclass(frozen=True)
class Lab:
    """Where the session's runs live, and how to run a command there."""

    path: Path
    environ: dict[str, str]

    def start(self, *arguments: object, **environ: str) -> subprocess.Popen[str]:
        """A ``dflash`` process in the project's directory, so that its policy and lock judge the environment."""
        return subprocess.Popen(
            [DFLASH, *map(str, arguments)],
            cwd=ROOT,
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, expect: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run to the end and check the exit code."""
        process = self.start(*arguments, **environ)
        out, err = process.communicate(timeout=600)
        assert process.returncode == expect, f"exit {process.returncode}, expected {expect}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def config(self, name: str, *, steps: int = 8) -> Path:
        """A configuration file of its own."""
        path = self.path / f"{name}.toml"
        path.write_text(CONFIG.format(steps=steps, data=self.path / "prepared"))
        return path

    def train(self, name: str, *more: object, steps: int = 8, expect: int = 0, **environ: str) -> Any:
        """``dflash train`` into ``self.path / name``."""
        config = self.config(name, steps=steps)
        return self.run("train", config, "--set", f"run.dir={self.path / name}", *more, expect=expect, **environ)

    def json(self, name: str, file: str) -> dict[str, Any]:
        """A JSON file of a run."""
        document: dict[str, Any] = json.loads((self.path / name / file).read_text())
        return document

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """The lines of a run's ``metrics.jsonl``."""
        return [json.loads(line) for line in (self.path / name / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab with eight prepared responses of the example."""
    path = tmp_path_factory.mktemp("lab")
    environ = os.environ | {
        "XDG_CACHE_HOME": str(path / "xdg-cache"),
        "XDG_DATA_HOME": str(path / "xdg-data"),
        "TORCHINDUCTOR_CACHE_DIR": str(path / "inductor"),
        "DFLASH_CACHE_STORE": str(path / "store"),
    }
    made = Lab(path=path, environ=environ)
    responses = (ROOT / "examples" / "data" / "train_responses.jsonl").read_text().split("\n")[:8]
    (path / "responses.jsonl").write_text("\n".join(responses) + "\n")
    made.run("data", "prepare", path / "responses.jsonl", path / "prepared")
    return made


@pytest.fixture(scope="session")
def first_run(lab: Lab) -> str:
    """The session's first training: cold, to the end; its name."""
    lab.train("first", steps=24)
    return "first"
