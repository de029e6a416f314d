"""Fixtures of the cache tests: a synthetic cache, a store, and one real cache that torch made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from cache_tools.store import Store, create_store

PROGRAM = Path(__file__).with_name("tiny_compile.py")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A cache that torch filled, and what is known of its making."""

    cache_dir: Path
    run: Path
    """Holds ``cache_keys.json``."""
    trace: Path
    """What ``TORCH_TRACE`` left."""
    result: dict[str, Any]


class RunTorch(Protocol):
    def __call__(self, cache_dir: Path, *, rc: int = 0, environ: dict[str, str] | None = None, **asked: Any) -> Any: ...


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path / "store")


@pytest.fixture(scope="session")
def run_torch(tmp_path_factory: pytest.TempPathFactory) -> RunTorch:
    """Compile and run the tiny program with a cache directory, in a process of its own; its result.

    With another ``rc`` than 0, what it wrote to stderr.
    """
    work = tmp_path_factory.mktemp("torch-work")

    def run(cache_dir: Path, *, rc: int = 0, environ: dict[str, str] | None = None, **asked: Any) -> Any:
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache_dir), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
        command = [sys.executable, str(PROGRAM), json.dumps(asked)]
        done = subprocess.run(command, env=env | (environ or {}), cwd=work, capture_output=True, text=True, timeout=600)
        assert done.returncode == rc, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if rc == 0 else done.stderr

    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, run_torch: RunTorch) -> Made:
    """A cache directory filled by torch: change a copy, never this one."""
    root = tmp_path_factory.mktemp("torch-cache")
    cache_dir, run, trace = root / "inductor", root / "run", root / "trace"
    result = run_torch(cache_dir, run=str(run), environ={"TORCH_TRACE": str(trace)})
    return Made(cache_dir=cache_dir, run=run, trace=trace, result=result)


@pytest.fixture(scope="session")
def rich_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory with every kind of file that torch and triton write without a GPU: change a copy."""
    root = tmp_path_factory.mktemp("rich-cache")
    own = {"TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    own |= {"TORCH_COMPILE_JOB_ID": "job1", "TORCH_CACHING_PRECOMPILE": "1"}
    program = str(PROGRAM.with_name("rich_compile.py"))
    done = subprocess.run(
        [sys.executable, program], env=os.environ | own, cwd=root, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return root / "inductor"


@pytest.fixture(scope="session")
def torch_cache(made: Made) -> tuple[Path, dict[str, Any]]:
    """A cache directory filled by torch, and what the program that filled it printed."""
    return made.cache_dir, made.result
