"""The drift job fails with the finding named when the environment or the lock drifts, and passes after uv sync."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.envguard.scratch import Scratch, make_scratch

JOB = Path(__file__).parents[1] / "ci" / "drift"


def drift(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([JOB, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def job(scratch: Scratch) -> subprocess.CompletedProcess[str]:
    return drift("--project", str(scratch.root), "--python", str(scratch.python))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    home = tmp_path_factory.mktemp("drift")
    return make_scratch(home / "project", home / "uv-cache")


def edit(name: str, old: str, new: str) -> Callable[[Scratch], None]:
    def change(scratch: Scratch) -> None:
        path = scratch.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def test_this_repository_has_not_drifted(tmp_path: Path) -> None:
    done = drift(cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("inject", "name"),
    [
        (lambda s: s.install("cowsay", "1.0"), "cowsay"),
        (lambda s: s.install("beta", "2.0"), "beta 2.0"),
        (lambda s: s.uv("pip", "uninstall", "gamma"), "gamma 1.0 is locked and not installed"),
    ],
    ids=["unexpected", "wrong version", "missing"],
)
def test_environment_drift_fails_and_sync_heals(scratch: Scratch, inject: Callable[[Scratch], None], name: str) -> None:
    assert job(scratch).returncode == 0
    inject(scratch)
    done = job(scratch)
    assert done.returncode == 1
    assert name in done.stdout
    scratch.uv("sync", "--locked")
    assert job(scratch).returncode == 0


def test_a_stale_lock_fails(scratch: Scratch, tmp_path: Path) -> None:
    stale = scratch.copy(tmp_path / "project")
    edit("pyproject.toml", '"alpha==1.0"', '"alpha==2.0"')(stale)
    done = job(stale)
    assert done.returncode == 1
    assert "LCK001" in done.stdout
    assert "needs to be updated" in done.stdout


def test_a_policy_error_is_exit_2(scratch: Scratch, tmp_path: Path) -> None:
    wrong = scratch.copy(tmp_path / "project")
    edit("envguard.toml", "forbid =", "forbidden =")(wrong)
    done = job(wrong)
    assert done.returncode == 2
    assert "distributions.forbidden" in done.stderr
