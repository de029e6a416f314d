"""Checks as pure functions: situations that no scratch environment can bring about, such as a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.findings import Finding, Repair, run_checks
from envguard.frozen import replace
from envguard.guard import inspect
from envguard.inspection import Inspection
from envguard.policy import TorchRule
from envguard.probes.torch_build import TorchBuild
from envguard.registry import CHECKS
from envguard.repair import Workplace, repair_command
from tests.envguard.scratch import Scratch


@pytest.fixture(scope="module")
def case(clean: Scratch) -> Inspection:
    """A sound inspection, judged as the project's own interpreter would judge itself."""
    return replace(inspect(clean.root, "cpu", clean.python, tier="fast"), python_was_named=False)


def found(case: Inspection) -> list[Finding]:
    return [each for each in run_checks(CHECKS, case) if each.status != "skip"]


def ids(case: Inspection) -> list[tuple[str, str]]:
    return [(each.id, each.status) for each in found(case)]


def with_driver(case: Inspection, driver: str, cuda: str, wanted: str | None = None) -> Inspection:
    build = TorchBuild(version="2.11.0", cuda=cuda, hip=None, git_version=None)
    profile = replace(case.profile, driver=wanted, torch=())
    return replace(case, profile=profile, observation=replace(case.observation, driver=driver, torch=build))


def test_the_case_is_sound(case: Inspection) -> None:
    assert ids(case) == []


@pytest.mark.parametrize(
    ("driver", "cuda", "wanted", "is_found"),
    [
        ("580.159.04", "13.0", None, False),
        ("580", "13.0", None, False),
        ("575.57.08", "13.0", None, True),
        ("575.57.08", "12.8", None, False),
        ("525.60.13", "12.8", None, False),
        ("525.60.12", "12.8", None, True),
        ("525.60.13", "12.8", ">=570", True),
        ("590.1", "13.0", ">=580,<590", True),
        ("999.0", "14.0", None, False),
    ],
)
def test_the_driver_must_fit_the_build(
    case: Inspection, driver: str, cuda: str, wanted: str | None, is_found: bool
) -> None:
    assert ids(with_driver(case, driver, cuda, wanted)) == ([("CUD003", "fail")] if is_found else [])


def test_a_driver_that_does_not_answer_is_no_pass(case: Inspection) -> None:
    broken = replace(case, observation=replace(case.observation, driver_problem="nvidia-smi does not answer"))
    assert ids(broken) == [("CUD003", "error")]


@pytest.mark.parametrize(
    ("rule", "is_found"),
    [
        (TorchRule(version="2.11.0+cu130"), False),
        (TorchRule(version="2.11.0+cu130", cuda="13.0"), False),
        (TorchRule(version="2.11.0+cu130", cuda="12.8"), True),
        (TorchRule(version="2.11.0+cu130", git_version="0" * 40), True),
        (TorchRule(version="2.11.0"), True),
    ],
)
def test_every_field_of_a_torch_rule_counts(case: Inspection, rule: TorchRule, is_found: bool) -> None:
    judged = replace(case, profile=replace(case.profile, torch=(rule,)))
    assert ids(judged) == ([("BLD001", "fail")] if is_found else [])
    both = replace(case, profile=replace(case.profile, torch=(rule, TorchRule(version="2.11.0+cu130"))))
    assert ids(both) == []


def test_a_torch_whose_metadata_has_the_label_is_one_question(case: Inspection) -> None:
    """BLD001 judges the label; PKG002 does not report it a second time."""
    labelled = tuple(
        replace(dist, version="2.11.0+cu130") if dist.name == "torch" else dist
        for dist in case.observation.distributions
    )
    assert ids(replace(case, observation=replace(case.observation, distributions=labelled))) == []


def test_another_environment_than_the_projects(case: Inspection, tmp_path: Path) -> None:
    elsewhere = replace(case, project_venv=tmp_path)
    assert ids(elsewhere) == [("ENV001", "warn")]
    interpreter = replace(case.observation.interpreter, is_venv=False)
    system = replace(elsewhere, observation=replace(case.observation, interpreter=interpreter))
    assert ids(system) == [("ENV001", "fail")]
    assert ids(replace(system, python_was_named=True)) == []


def test_repairs_merge_into_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_PROJECT_ENVIRONMENT", raising=False)
    monkeypatch.chdir(tmp_path)
    here = Workplace(uv="uv", directory=tmp_path, venv=tmp_path / ".venv")
    assert repair_command([], here) is None
    assert repair_command([Repair()], here) is None
    repairs = [
        Repair(sync=True),
        Repair(sync=True, reinstall=("b",)),
        Repair(sync=True, reinstall=("a", "b"), delete=("/x y",)),
        Repair(lock=True),
        Repair(sync=True, python=">=3.11"),
    ]
    assert repair_command(repairs, here) == (
        "rm -r '/x y' && uv lock && uv sync --locked --reinstall-package a --reinstall-package b --python '>=3.11'"
    )
    elsewhere = Workplace(uv="/v/bin/uv", directory=Path("/p"), venv=Path("/v"))
    assert repair_command([Repair(sync=True)], elsewhere) == (
        "UV_PROJECT_ENVIRONMENT=/v /v/bin/uv sync --locked --project /p"
    )
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", "/v")
    assert repair_command([Repair(sync=True)], elsewhere) == "/v/bin/uv sync --locked --project /p"
