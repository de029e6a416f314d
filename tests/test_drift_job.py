"""The drift job: it fails with the finding named, says the same to GitHub and in SARIF, judges every lock, compares
with the base that CI names, and proves by its self-test that it can fail. The ready CI files call it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.envguard.injections import commit, edit, move_watched
from tests.envguard.scratch import Scratch, make_scratch

ROOT = Path(__file__).parents[1]
JOB = ROOT / "ci" / "drift"
GITHUB = ROOT / ".github" / "workflows" / "drift.yml"
GITLAB = ROOT / "ci" / "gitlab-drift.yml"


def drift(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    hidden = ("PYTHONPATH", "GITHUB_ACTIONS", "GITHUB_BASE_REF", "DRIFT_BASE", "CI_MERGE_REQUEST_DIFF_BASE_SHA")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [JOB, *arguments], cwd=cwd, env={**environment, **environ}, capture_output=True, text=True, check=False
    )


def job(scratch: Scratch, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    place = ("--project", str(scratch.root), "--python", str(scratch.python))
    return drift(*place, *arguments, **scratch.environ, **environ)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    home = tmp_path_factory.mktemp("drift")
    return make_scratch(home / "project", home / "uv-cache")


@pytest.fixture
def scratch(clean: Scratch, tmp_path: Path) -> Scratch:
    return clean.copy(tmp_path / "project")


def test_this_repository_has_not_drifted(tmp_path: Path) -> None:
    done = drift(cwd=tmp_path, PATH=os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ["PATH"]]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the lock of profile cu128:" in done.stderr
    assert "has not been made yet" in done.stdout


def test_drift_fails_and_is_named(scratch: Scratch) -> None:
    assert job(scratch).returncode == 0
    scratch.install("cowsay", "1.0")
    done = job(scratch)
    assert done.returncode == 1
    assert "PKG003  cowsay" in done.stdout


def test_a_policy_error_is_exit_2_and_said_once(scratch: Scratch) -> None:
    edit("envguard.toml", "forbid =", "forbidden =")(scratch)
    done = job(scratch)
    assert done.returncode == 2
    assert done.stderr.count("distributions.forbidden") == 1


def test_github_gets_annotations_and_sarif(scratch: Scratch, tmp_path: Path) -> None:
    scratch.install("cowsay", "1.0")
    sarif = tmp_path / "drift.sarif"
    done = job(scratch, "--sarif", str(sarif), GITHUB_ACTIONS="true")
    assert done.returncode == 1
    assert "::error" in done.stdout
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert [each["ruleId"] for each in results] == ["PKG003"]


def test_the_lock_of_every_other_profile_is_judged(scratch: Scratch) -> None:
    """A profile of its own, whose lock is stale while everything about the judged one is sound."""
    later = scratch.root / "later"
    later.mkdir()
    for name in ("uv.lock", "pyproject.toml"):
        shutil.copy(scratch.root / name, later)
    shutil.copytree(scratch.root / "wheels", later / "wheels")
    edit("envguard.toml", 'unlocked = "its index is out of reach"\n', "")(scratch)
    assert job(scratch).returncode == 0
    edit("later/pyproject.toml", '"alpha==1.0"', '"alpha==2.0"')(scratch)
    done = job(scratch)
    assert done.returncode == 1
    assert "LCK001" in done.stdout


@pytest.mark.parametrize(
    "named", [{"DRIFT_BASE": "main"}, {"GITHUB_BASE_REF": "main"}, {"CI_MERGE_REQUEST_DIFF_BASE_SHA": "main"}]
)
def test_locks_are_compared_with_the_base_that_ci_names(scratch: Scratch, named: dict[str, str]) -> None:
    commit(scratch)
    command = ["git", "update-ref", "refs/remotes/origin/main", "HEAD"]
    subprocess.run(command, cwd=scratch.root, env=scratch.environ, check=True)
    assert job(scratch, **named).returncode == 0
    move_watched(scratch)
    assert job(scratch).returncode == 0
    done = job(scratch, **named)
    assert done.returncode == 1
    assert "LCK003  alpha moves from 1.0" in done.stdout


@pytest.mark.slow
def test_the_self_test_tries_every_kind_that_a_gate_needs() -> None:
    done = drift("--self-test")
    assert done.returncode == 0, done.stdout + done.stderr
    tried = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert all(status == "ok" for status, _, _ in tried)
    ids = {check_id for _, check_id, _ in tried}
    assert {"PKG001", "PKG002", "PKG003", "PKG004", "PKG005", "PKG006", "INT002", "INT006"} <= ids
    assert {"CUD001", "BLD001", "LCK001", "LCK002", "LCK003"} <= ids
    assert f"{len(tried)} of {len(tried)}" in done.stderr


def test_the_self_test_fails_where_the_gate_is_open(tmp_path: Path) -> None:
    """A copy of the repository in which one check has been made blind."""
    copy = tmp_path / "repository"
    for name in ("ci", "envguard", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / ".venv").symlink_to(ROOT / ".venv")
    packages = copy / "envguard" / "checks" / "packages.py"
    text = packages.read_text()
    assert "run=_unexpected," in text
    packages.write_text(text.replace("run=_unexpected,", "run=lambda case: (),"))
    done = subprocess.run(
        [copy / "ci" / "drift", "--self-test", "extra", "missing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL  PKG003  extra: exit 0 where 1 is right" in done.stdout
    assert "ok    PKG001  missing" in done.stdout
    assert "1 of 2 kinds of drift shut the gate" in done.stderr


def test_the_self_test_refuses_an_unknown_kind() -> None:
    done = drift("--self-test", "no such kind")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def commands(path: Path) -> list[str]:
    """Everything that a CI file runs, in its order."""
    document = yaml.safe_load(path.read_text())
    if path == GITLAB:
        return [line for part in ("before_script", "script") for line in document["drift"][part]]
    steps = [step for job in document["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def test_the_github_file_is_what_github_reads() -> None:
    document = yaml.safe_load(GITHUB.read_text())
    assert set(document[True]) == {"pull_request", "push", "schedule"}  # YAML 1.1 reads the key "on" as true
    assert document["permissions"] == {"contents": "read", "security-events": "write"}
    used = [step["uses"] for job in document["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(each.startswith(("actions/", "github/codeql-action/")) and "@v" in each for each in used)
    [upload] = [step for step in document["jobs"]["drift"]["steps"] if "upload-sarif" in step.get("uses", "")]
    assert upload["with"]["sarif_file"] in " ".join(commands(GITHUB))
    assert upload["if"].startswith("always()")


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_the_commands_of_the_ci_files_run(path: Path, scratch: Scratch, tmp_path: Path) -> None:
    """The installation is that of .ci/run, which CI runs; the fetch and the job run here, in a clone of a project."""
    recipe = (ROOT / ".ci" / "run").read_text()
    commit(scratch)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{scratch.root}", str(clone)], check=True)
    sha = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True).stdout
    (clone / "ci").mkdir()
    place = f'--project "{scratch.root}" --python "{scratch.python}"'
    (clone / "ci" / "drift").write_text(f'#!/bin/sh\nexec "{JOB}" {place} "$@"\n')
    (clone / "ci" / "drift").chmod(0o755)
    environ = {**scratch.environ, "GITHUB_BASE_REF": "main", "CI_MERGE_REQUEST_DIFF_BASE_SHA": sha.strip()}
    subprocess.run(["git", "update-ref", "refs/remotes/origin/main", "HEAD"], cwd=scratch.root, check=True)
    for command in commands(path):
        if command in ("python3 -m pip install --quiet uv", "uv sync --locked"):
            assert command in recipe
        elif command != "ci/drift --self-test":  # it has a test of its own
            done = subprocess.run(
                ["bash", "-ec", command], cwd=clone, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert (clone / "drift.sarif").is_file()
