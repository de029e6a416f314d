"""``envguard init``: a policy that the project passes as it is, and that is never written over another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from envguard import check_project
from envguard.policy import load_policy
from envguard.starter import render
from tests.envguard.scratch import GIT_VERSION, Scratch


def init(scratch: Scratch, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envguard", "init", *arguments]
    return subprocess.run(command, cwd=scratch.root, env=scratch.environ, capture_output=True, text=True, check=False)


def test_a_project_passes_its_first_policy_and_its_torch_is_pinned(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", scratch.environ["PATH"])
    path = scratch.root / "envguard.toml"
    path.unlink()
    done = init(scratch, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"schema": 1, "policy": str(path), "torch": "2.11.0+cu130"}
    [profile] = load_policy(path).profiles
    assert profile.python == ">=3.11,<3.14"
    assert [(rule.version, rule.cuda, rule.git_version) for rule in profile.torch] == [
        ("2.11.0+cu130", "13.0", GIT_VERSION)
    ]
    assert check_project(scratch.root, "auto", scratch.python, tier="standard").findings == ()
    scratch.uv("pip", "uninstall", "torch")
    path.unlink()
    assert "pins no build of torch" in init(scratch).stderr
    assert load_policy(path).profiles[0].torch == ()


def test_what_the_comments_show_is_valid(scratch: Scratch) -> None:
    text = render(">=3.11", None)
    shown = [
        line.removeprefix("# ") for line in text.splitlines() if line.startswith(("# driver", "# packages", "# env"))
    ]
    assert len(shown) == 3
    lines = [line.removeprefix("# ") if line.removeprefix("# ") in shown else line for line in text.splitlines()]
    path = scratch.root / "envguard.toml"
    path.write_text("\n".join(lines) + "\n")
    [profile] = load_policy(path).profiles
    assert (profile.driver, profile.packages, profile.deny_variables) == (
        ">=580",
        (("transformers", "5.6.0"),),
        ("PYTHONPATH",),
    )


def test_an_existing_policy_stays(scratch: Scratch) -> None:
    before = (scratch.root / "envguard.toml").read_bytes()
    done = init(scratch)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is there already" in done.stderr
    assert (scratch.root / "envguard.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("absent", "said"), [("pyproject.toml", "run uv init"), ("uv.lock", "run uv lock"), (".venv", "run uv sync")]
)
def test_what_is_missing_is_named_with_its_command(scratch: Scratch, absent: str, said: str) -> None:
    (scratch.root / "envguard.toml").unlink()
    place = scratch.root / absent
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    done = init(scratch)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert not (scratch.root / "envguard.toml").exists()


def test_a_wrong_pyproject_is_one_line(scratch: Scratch) -> None:
    (scratch.root / "envguard.toml").unlink()
    for text in ("[project", '[project]\nrequires-python = "three"\n', "project = 3\n"):
        (scratch.root / "pyproject.toml").write_text(text)
        done = init(scratch)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), text
