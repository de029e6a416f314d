"""What every test shares: no test meets this machine's real caches or a surrounding configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_compile_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory and store of the test's own (importing torch._dynamo writes a default into the environment)."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.fspath(tmp_path / "inductor"))
    monkeypatch.setenv("DFLASH_CACHE_STORE", os.fspath(tmp_path / "cache-store"))
