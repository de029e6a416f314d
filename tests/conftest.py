"""What every test shares: no test meets this machine's real caches or a surrounding configuration."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """What a shell or nohup ignores for the tests is not ignored by what they start: a handler is not inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def _own_trust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A trust directory of this session: what its tests snapshot is theirs, and the user's own is not touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_CACHE_TRUST", os.fspath(tmp_path_factory.mktemp("trust") / "cache-trust"))
        yield


@pytest.fixture(autouse=True)
def _own_compile_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory and store of the test's own (importing torch._dynamo writes a default into the environment)."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.fspath(tmp_path / "inductor"))
    monkeypatch.setenv("DFLASH_CACHE_STORE", os.fspath(tmp_path / "cache-store"))
