"""What the table of drift (``kinds.py``, ``test_matrix.py``) cannot say: extras, weights, crashes, ``require``."""

from __future__ import annotations

import shutil

import pytest

from envguard import DriftError, check_project, require
from envguard.errors import CheckCrashed
from envguard.report import Report
from tests.envguard.scratch import Scratch


def judge(scratch: Scratch, profile: str = "cpu") -> Report:
    return check_project(scratch.root, profile, scratch.python, tier="standard")


def test_extras_and_other_groups_may_be_there(scratch: Scratch) -> None:
    scratch.uv("sync", "--locked", "--all-extras", "--all-groups")
    names = {path.name for path in scratch.site_packages.glob("*.dist-info")}
    assert {"delta-1.0.dist-info", "epsilon-1.0.dist-info"} <= names
    assert judge(scratch).findings == ()


def test_unexpected_is_what_the_policy_makes_it(scratch: Scratch) -> None:
    path = scratch.root / "envguard.toml"
    path.write_text(path.read_text().replace('unexpected = "fail"', 'unexpected = "warn"'))
    scratch.install("cowsay", "1.0")
    report = judge(scratch)
    assert [(each.id, each.status) for each in report.findings] == [("PKG003", "warn")]
    assert report.exit_code == 0
    path.write_text(path.read_text().replace('allow = ["pip"]', 'allow = ["cow*"]'))
    assert judge(scratch).findings == ()


def test_a_declared_profile_without_a_lock_is_skipped_with_its_reason(clean: Scratch) -> None:
    report = judge(clean, "later")
    reasons = {each.id: each.message for each in report.skipped}
    assert "its index is out of reach" in reasons["LCK004"]
    assert {"PKG001", "PKG003"} <= set(reasons)
    assert report.repair is None  # there is no lock to sync with
    assert [each.id for each in report.findings] == ["ENV002"]


def test_an_unlocked_profile_must_lose_its_excuse_once_it_has_a_lock(scratch: Scratch) -> None:
    (scratch.root / "later").mkdir()
    shutil.copy(scratch.root / "uv.lock", scratch.root / "later")
    shutil.copy(scratch.root / "pyproject.toml", scratch.root / "later")
    assert "LCK004" in {each.id for each in check_project(scratch.root, "later", scratch.python).findings}


def test_require_names_each_finding_in_one_line(scratch: Scratch) -> None:
    assert require("cpu", project=scratch.root, python=scratch.python).status == "pass"
    scratch.install("cowsay", "1.0")
    scratch.install("beta", "2.0")
    with pytest.raises(DriftError) as caught:
        require("cpu", project=scratch.root, python=scratch.python)
    lines = str(caught.value).splitlines()
    assert [line[:6] for line in lines[:2]] == ["PKG002", "PKG003"]
    assert lines[2].startswith("repair it with: ")
    assert "sync --locked" in lines[2]
    assert caught.value.exit_code == 1


def test_a_missing_uv_is_no_pass(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    report = judge(scratch)
    assert [(each.id, each.status) for each in report.findings] == [("LCK001", "error")]
    assert report.exit_code == 3


def test_a_check_that_crashes_is_an_error_and_the_others_go_on(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.install("cowsay", "1.0")
    monkeypatch.setattr("envguard.checks.interpreter.satisfies", lambda version, wanted: 1 / 0)
    report = judge(scratch)
    assert {(each.id, each.status) for each in report.findings} == {("ENV002", "error"), ("PKG003", "fail")}
    assert report.exit_code == 3
    with pytest.raises(CheckCrashed, match="ZeroDivisionError"):
        require("cpu", project=scratch.root, python=scratch.python)
