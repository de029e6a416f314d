"""Fixtures of the cache tests: a synthetic cache, a store, and one real cache that torch made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache_tools.store import Store, create_store

PROGRAM = Path(__file__).with_name("tiny_compile.py")
RunTorch = Callable[[Path], dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path / "store")


@pytest.fixture(scope="session")
def run_torch(tmp_path_factory: pytest.TempPathFactory) -> RunTorch:
    """Compile and run the tiny program with a cache directory, in a process of its own; its result."""
    work = tmp_path_factory.mktemp("torch-work")

    def run(cache_dir: Path) -> dict[str, Any]:
        environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache_dir), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
        done = subprocess.run(
            [sys.executable, str(PROGRAM)], env=environ, cwd=work, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    return run


@pytest.fixture(scope="session")
def torch_cache(tmp_path_factory: pytest.TempPathFactory, run_torch: RunTorch) -> tuple[Path, dict[str, Any]]:
    """A cache directory filled by torch, and what the program that filled it printed."""
    cache_dir = tmp_path_factory.mktemp("torch-cache") / "inductor"
    return cache_dir, run_torch(cache_dir)
