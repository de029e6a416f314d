"""Fixtures: one synced scratch project a session, and a copy of it for each test that injects drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envguard.scratch import Scratch, make_scratch


@pytest.fixture(autouse=True)
def _own_user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What envguard remembers between two runs is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    """A sound environment; do not change it."""
    home = tmp_path_factory.mktemp("scratch")
    return make_scratch(home / "project", home / "uv-cache")


@pytest.fixture
def scratch(clean: Scratch, tmp_path: Path) -> Scratch:
    """A sound environment of the test's own."""
    return clean.copy(tmp_path / "project")
