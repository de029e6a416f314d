"""A crash inside any single check is an error finding and exit 3, and all the others still report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envguard import check_project, require
from envguard.errors import CheckCrashed
from envguard.findings import Check, Problem
from envguard.frozen import replace
from envguard.inspection import Inspection
from envguard.registry import CHECKS
from tests.envguard.scratch import Scratch

TIERS = ("standard", "deep", "gpu")


@pytest.fixture(scope="module")
def drifted(clean: Scratch, tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    """An environment with two kinds of drift that other checks than the broken one must go on reporting."""
    scratch = clean.copy(tmp_path_factory.mktemp("drifted") / "project")
    scratch.install("cowsay", "1.0")
    scratch.uv("pip", "uninstall", "gamma")
    return scratch


def crash(case: Inspection) -> list[Problem]:
    raise ZeroDivisionError("injected")


def crash_late(case: Inspection) -> Iterator[Problem]:
    yield Problem(subject="x", message="half a list")
    raise RecursionError("injected")


@pytest.mark.parametrize("broken", CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("fault", [crash, crash_late])
def test_a_crash_in_one_check_leaves_the_others(
    drifted: Scratch, monkeypatch: pytest.MonkeyPatch, broken: Check[Inspection], fault: object
) -> None:
    checks = tuple(replace(each, run=fault) if each is broken else each for each in CHECKS)
    monkeypatch.setattr("envguard.registry.CHECKS", checks)
    tier = broken.tier if broken.tier in TIERS else "standard"
    usual = {(each.id, each.status) for each in _judge(drifted, tier, monkeypatch, CHECKS)}
    report = check_project(drifted.root, "cpu", drifted.python, tier=tier)  # type: ignore[arg-type]
    found = {(each.id, each.status) for each in report.findings}
    assert (broken.id, "error") in found
    assert {each for each in found if each[0] != broken.id} == {each for each in usual if each[0] != broken.id}
    assert {("PKG001", "fail"), ("PKG003", "fail")} - {(broken.id, "fail")} <= found
    assert report.exit_code == 3
    [error] = [each for each in report.findings if each.id == broken.id]
    assert "injected" in error.message


def _judge(scratch: Scratch, tier: str, monkeypatch: pytest.MonkeyPatch, checks: object) -> object:
    with monkeypatch.context() as patch:
        patch.setattr("envguard.registry.CHECKS", checks)
        return check_project(scratch.root, "cpu", scratch.python, tier=tier).findings  # type: ignore[arg-type]


def test_require_refuses_a_crash(clean: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = (*CHECKS[:-1], replace(CHECKS[-1], run=crash))
    monkeypatch.setattr("envguard.registry.CHECKS", broken)
    with pytest.raises(CheckCrashed, match="injected"):
        require("cpu", project=clean.root, python=clean.python)
