"""The drift matrix: each kind of drift in ``kinds.py`` is named by its id and subject, with its exit code, and nothing
else is; a sound environment of every supported Python has no finding at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envguard.registry import CHECKS
from tests.envguard.injections import edit
from tests.envguard.kinds import DRIFT, SOUND, Drift, heal, judge
from tests.envguard.scratch import Scratch, find_uv, make_scratch

PYTHONS = ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("kind", DRIFT)
def test_drift_is_named_and_nothing_else_is_and_heals(scratch: Scratch, kind: str) -> None:
    drift = DRIFT[kind]
    drift.inject(scratch)
    done = judge(scratch, drift)
    _assert_named(drift, done)
    healed = heal(scratch, drift, done)
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert json.loads(healed.stdout)["findings"] == []


def _assert_named(drift: Drift, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == drift.exit_code, done.stdout + done.stderr
    if drift.refused:
        assert done.stdout == ""
        assert drift.subject in done.stderr
        return
    found = {(each["id"], each["subject"]): each["status"] for each in json.loads(done.stdout)["findings"]}
    assert sorted(found) == sorted([(drift.id, drift.subject), *drift.also]), done.stdout
    assert found[drift.id, drift.subject] == drift.status


def test_the_matrix_holds_every_check() -> None:
    assert {check.id for check in CHECKS} <= {drift.id for drift in DRIFT.values()}
    assert len(DRIFT) >= 40


@pytest.mark.parametrize("minor", PYTHONS)
def test_a_sound_environment_has_no_finding(tmp_path: Path, minor: str) -> None:
    scratch = make_scratch(tmp_path / "project", tmp_path / "uv-cache", find_python(minor))
    assert scratch.site_packages.parent.name == f"python{minor}"
    for arguments in ((), ("--deep",)):
        document = json.loads(judge(scratch, replace(SOUND, arguments=arguments)).stdout)
        assert document["findings"] == []
        assert document["exit_code"] == 0
    scratch.uv("sync", "--locked", "--all-extras", "--all-groups")
    assert json.loads(judge(scratch, SOUND).stdout)["findings"] == []


def test_an_environment_of_another_python_is_named_and_made_anew(tmp_path: Path) -> None:
    """With a real interpreter of another minor version, found as above."""
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
    own = "{}.{}".format(*sys.version_info[:2])
    scratch = make_scratch(tmp_path / "project", tmp_path / "uv-cache", find_python(other))
    edit("envguard.toml", 'python = ">=3.11,<3.14"', f'python = "=={own}.*"')(scratch)
    done = judge(scratch, SOUND)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert [(each["id"], each["subject"]) for each in document["findings"]] == [("ENV002", "python")]
    assert document["repair"] == f"uv sync --locked --python '=={own}.*'"
    environ = {**scratch.environ, "PATH": f"{Path(sys.executable).resolve().parent}:{scratch.environ['PATH']}"}
    subprocess.run(document["repair"], shell=True, cwd=scratch.root, env=environ, check=True, capture_output=True)
    assert json.loads(judge(scratch, SOUND).stdout)["findings"] == []


def find_python(minor: str) -> str:
    """An interpreter of this minor version: the running one, one on PATH, of pyenv or of uv.

    Where there is none the test is skipped with the command that gets it, and in CI (``CI`` is set) it fails.
    """
    if minor == "{}.{}".format(*sys.version_info[:2]):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    managed = subprocess.run([find_uv(), "python", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    candidates = [
        shutil.which(f"python{minor}"),
        *sorted(pyenv.glob(f"{minor}.*/bin/python{minor}"), reverse=True),
        *sorted(Path(managed).glob(f"cpython-{minor}.*/bin/python{minor}"), reverse=True),
    ]
    for candidate in candidates:
        if candidate and _runs(str(candidate), minor):
            return str(candidate)
    missing = f"there is no Python {minor} on this machine: uv python install {minor}"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def _runs(python: str, minor: str) -> bool:
    code = "import sys; print('{}.{}'.format(*sys.version_info[:2]))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)  # a shim may refuse
    return done.stdout.strip() == minor
