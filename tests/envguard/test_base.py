"""LCK003 and its base: what counts as a move, where the base comes from, and what a shallow clone says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.base import read_base
from envguard.guard import check_project
from envguard.report import Report
from tests.envguard.injections import allow, commit, edit, in_profile
from tests.envguard.scratch import Scratch, make_wheel

WORKFLOW = Path(__file__).parents[2] / ".github" / "workflows" / "drift.yml"


def judge(scratch: Scratch, base: str) -> Report:
    return check_project(scratch.root, "cpu", scratch.python, tier="standard", base=base, select=["LCK003"])


def found(report: Report) -> list[tuple[str, str]]:
    return [(each.subject, each.status) for each in report.findings]


def relock(scratch: Scratch, old: str, new: str) -> None:
    edit("pyproject.toml", old, new)(scratch)
    scratch.uv("lock")


def git(scratch: Scratch, *arguments: str) -> None:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=scratch.root, env=scratch.environ, check=True)


def test_nothing_moves(scratch: Scratch) -> None:
    commit(scratch)
    assert found(judge(scratch, "HEAD")) == []
    assert found(judge(scratch, "main")) == []


def test_only_protected_packages_count(scratch: Scratch) -> None:
    commit(scratch)
    relock(scratch, '"gamma==1.0"', '"gamma==2.0"')
    assert found(judge(scratch, "main")) == []
    in_profile("packages = { gamma = '2.0' }")(scratch)  # a pin protects, and the policy has changed with it
    assert found(judge(scratch, "main")) == []
    git(scratch, "commit", "-qam", "gamma 2")
    relock(scratch, '"gamma==2.0"', '"gamma==1.0"')
    assert found(judge(scratch, "main")) == [("gamma", "fail")]


def test_a_move_is_reported_with_both_ends_and_passes_with_the_policy(scratch: Scratch) -> None:
    commit(scratch)
    relock(scratch, '"alpha==1.0"', '"alpha==2.0"')
    report = judge(scratch, "main")
    assert found(report) == [("alpha", "fail")]
    [finding] = report.findings
    assert finding.expected is not None
    assert finding.expected.startswith("1.0 (registry ")
    assert "moves from 1.0 (registry" in finding.message
    allow("something")(scratch)
    assert found(judge(scratch, "main")) == []


def test_another_source_of_the_same_version_is_a_move(scratch: Scratch) -> None:
    commit(scratch)
    other = scratch.root / "other"
    other.mkdir()
    made = make_wheel(other, "alpha", "1.0", {"alpha/__init__.py": "other = True\n"}, ("beta==1.0",))
    relock(scratch, "[tool.uv]\n", f'[tool.uv.sources]\nalpha = {{ path = "other/{made.name}" }}\n\n[tool.uv]\n')
    [finding] = judge(scratch, "main").findings
    assert (finding.subject, finding.observed) == ("alpha", f"1.0 (path other/{made.name})")


def test_a_protected_package_that_is_gone_has_moved_and_a_new_one_has_not(scratch: Scratch) -> None:
    commit(scratch)
    relock(scratch, '"alpha==1.0", ', "")
    assert found(judge(scratch, "main")) == [("alpha", "fail")]
    git(scratch, "commit", "-qam", "without alpha")
    relock(scratch, 'dependencies = ["torch', 'dependencies = ["alpha==1.0", "torch')
    assert found(judge(scratch, "main")) == []


def test_a_file_and_a_directory_are_bases_too(scratch: Scratch, clean: Scratch) -> None:
    relock(scratch, '"alpha==1.0"', '"alpha==2.0"')
    assert found(judge(scratch, str(clean.root / "uv.lock"))) == [("alpha", "fail")]
    assert found(judge(scratch, str(clean.root))) == [("alpha", "fail")]
    allow("something")(scratch)
    assert found(judge(scratch, str(clean.root))) == []
    assert found(judge(scratch, str(clean.root / "uv.lock"))) == [("alpha", "fail")]  # a lock alone tells no policy


def test_a_base_without_this_lock_is_skipped(scratch: Scratch) -> None:
    lock = (scratch.root / "uv.lock").read_bytes()
    (scratch.root / "uv.lock").unlink()
    commit(scratch)
    (scratch.root / "uv.lock").write_bytes(lock)
    report = judge(scratch, "main")
    assert report.findings == ()
    assert "main has no uv.lock" in report.skipped[0].message


@pytest.mark.parametrize(
    ("prepare", "base", "said"),
    [
        (lambda s: None, "main", "is in no git repository, and there is no file"),
        (commit, "nonsense", "git knows no such revision, and there is no such file"),
        (commit, "--help", "git knows no such revision"),
        (lambda s: (s.root / "cut.lock").write_text("version = 1\n[[pack"), "cut.lock", "is no valid TOML"),
    ],
)
def test_a_base_that_cannot_be_read_is_exit_3(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, prepare: object, base: str, said: str
) -> None:
    assert callable(prepare)
    prepare(scratch)
    monkeypatch.chdir(scratch.root)
    report = judge(scratch, base)
    assert found(report) == [("LCK003", "error")]
    assert report.exit_code == 3
    assert said in report.findings[0].message


def test_a_shallow_clone_says_what_to_fetch_and_the_workflow_fetches_it(scratch: Scratch, tmp_path: Path) -> None:
    commit(scratch)
    git(scratch, "switch", "-q", "-c", "refresh")
    relock(scratch, '"alpha==1.0"', '"alpha==2.0"')
    git(scratch, "commit", "-qam", "refresh")
    clone = tmp_path / "clone"
    source = f"file://{scratch.root}"
    subprocess.run(["git", "clone", "-q", "--depth", "1", "-b", "refresh", source, str(clone)], check=True)

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "envguard", "check", "--profile", "cpu", "--python", str(scratch.python)]
        command += ["--select", "LCK003", "--json", "--base", "origin/main"]
        return subprocess.run(command, cwd=clone, env=scratch.environ, capture_output=True, text=True, check=False)

    refused = check()
    assert refused.returncode == 3
    message = json.loads(refused.stdout)["findings"][0]["message"]
    assert "this clone is shallow: git fetch --depth 1 origin main:refs/remotes/origin/main" in message

    import yaml

    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["drift"]["steps"]
    [fetch] = [step["run"] for step in steps if step.get("run", "").startswith("git fetch")]
    environ = {**scratch.environ, "GITHUB_BASE_REF": "main"}
    subprocess.run(["bash", "-ec", fetch], cwd=clone, env=environ, check=True)
    done = check()
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["subject"] == "alpha"


def test_a_missing_git_is_a_problem(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(scratch)
    monkeypatch.setenv("PATH", "/nonexistent")
    base = read_base("main", scratch.root / "envguard.toml", scratch.root / "uv.lock")
    assert base.problem is not None
    assert "git cannot be run" in base.problem


def test_a_lock_below_the_root_is_found_in_git(scratch: Scratch) -> None:
    """As the lock of a profile that is a uv project of its own."""
    (scratch.root / "later").mkdir()
    shutil.copy(scratch.root / "uv.lock", scratch.root / "later" / "uv.lock")
    commit(scratch)
    base = read_base("main", scratch.root / "envguard.toml", scratch.root / "later" / "uv.lock")
    assert base.problem is None
    assert base.before is not None
