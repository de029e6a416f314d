"""BLD002: the same version from another build, told by the recorded environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envguard import check_project
from envguard.report import Report
from tests.envguard.scratch import Scratch, make_wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recorded(scratch: Scratch) -> Scratch:
    """A project that recorded its environment while it was good."""
    target = scratch.root / "env.json"
    command = [sys.executable, "-m", "envguard", "freeze", "--python", str(scratch.python), "-o", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    policy = scratch.root / "envguard.toml"
    policy.write_text(policy.read_text().replace("schema = 1", 'schema = 1\nrecorded = "env.json"'))
    return scratch


def judge(scratch: Scratch) -> Report:
    return check_project(scratch.root, "cpu", scratch.python, tier="standard")


def test_the_recorded_environment_is_itself(recorded: Scratch) -> None:
    report = judge(recorded)
    assert report.findings == ()
    assert "BLD002" not in {each.id for each in report.skipped}


def test_another_build_of_the_same_version(recorded: Scratch) -> None:
    make_wheel(recorded.root / "wheels", "beta", "1.0", {"beta/__init__.py": "version = '1.0'  # built elsewhere\n"})
    recorded.uv("pip", "install", "--no-deps", "--reinstall", "--no-index", "--find-links", "wheels", "beta==1.0")
    [finding] = judge(recorded).findings
    assert (finding.id, finding.subject, finding.status) == ("BLD002", "beta", "fail")
    assert finding.expected != finding.observed


def test_a_policy_that_records_nothing_is_a_skip_with_its_reason(clean: Scratch) -> None:
    [skipped] = [each for each in judge(clean).skipped if each.id == "BLD002"]
    assert "names no recorded environment" in skipped.message


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", '{"facts": {"distributions": [1]}}', '{"facts": {"distributions": []}}', "[" * 100_000],
)
def test_a_recorded_file_that_is_none_is_one_clear_finding(recorded: Scratch, content: str | None) -> None:
    path = recorded.root / "env.json"
    path.unlink() if content is None else path.write_text(content)
    [finding] = judge(recorded).findings
    assert (finding.id, finding.subject) == ("BLD002", "env.json")
    assert str(path) in finding.message
    assert "envguard freeze -o" in finding.fix


def test_a_recorded_file_without_fingerprints_says_so(recorded: Scratch) -> None:
    path = recorded.root / "env.json"
    document = json.loads(path.read_text())
    for each in document["facts"]["distributions"]:
        del each["fingerprint"]
    path.write_text(json.dumps(document))
    [finding] = judge(recorded).findings
    assert "holds no fingerprint" in finding.message
