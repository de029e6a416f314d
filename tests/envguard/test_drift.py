"""Each kind of drift, injected into a real virtual environment, is found: its id, its subject, its exit code."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard import DriftError, check_project, require
from envguard.errors import CheckCrashed
from envguard.report import Report
from tests.envguard.scratch import Scratch, torch_version_file


def judge(scratch: Scratch, profile: str = "cpu") -> Report:
    return check_project(scratch.root, profile, scratch.python, tier="standard")


def info(scratch: Scratch, name: str) -> str:
    return str(next(scratch.site_packages.glob(f"{name}-*.dist-info")))


def remove(path: str) -> None:
    shutil.rmtree(path)


def relabel(scratch: Scratch) -> None:
    labelled = Path(info(scratch, "beta")).rename(scratch.site_packages / "beta-1.0+cu1.dist-info")
    (labelled / "METADATA").write_text("Metadata-Version: 2.1\nName: beta\nVersion: 1.0+cu1\n")
    (labelled / "RECORD").write_text("".join(f"{labelled.name}/{each.name},,\n" for each in labelled.iterdir()))


def edit_torch(text: str) -> Callable[[Scratch], None]:
    return lambda s: (s.site_packages / "torch" / "version.py").write_text(text) and None


def second_dist_info(scratch: Scratch) -> None:
    second = scratch.site_packages / "alpha-0.9.dist-info"
    shutil.copytree(info(scratch, "alpha"), second)
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: alpha\nVersion: 0.9\n")
    (second / "RECORD").write_text("".join(f"{second.name}/{each.name},,\n" for each in second.iterdir()))


def truncate(name: str) -> Callable[[Scratch], None]:
    def damage(scratch: Scratch) -> None:
        (scratch.site_packages / "alpha-1.0.dist-info" / name).write_bytes(b"")

    return damage


def unlink(name: str) -> Callable[[Scratch], None]:
    return lambda s: (s.site_packages / "alpha-1.0.dist-info" / name).unlink()


def stale_lock(scratch: Scratch) -> None:
    path = scratch.root / "pyproject.toml"
    path.write_text(path.read_text().replace('"alpha==1.0"', '"alpha==2.0"'))


def wrong_python(scratch: Scratch) -> None:
    path = scratch.root / "envguard.toml"
    path.write_text(path.read_text().replace('python = ">=3.11,<3.14"', 'python = "==3.10.*"'))


def pin(scratch: Scratch) -> None:
    path = scratch.root / "envguard.toml"
    path.write_text(
        path.read_text().replace("[[profiles.cpu.torch]]", "packages = { alpha = '3' }\n\n[[profiles.cpu.torch]]")
    )


DRIFT: dict[str, tuple[Callable[[Scratch], object], str, str]] = {
    "unexpected": (lambda s: s.install("cowsay", "1.0"), "PKG003", "cowsay"),
    "wrong version": (lambda s: s.install("beta", "2.0"), "PKG002", "beta"),
    "wrong version of an extra": (lambda s: s.install("delta", "2.0"), "PKG002", "delta"),
    "not the pinned version": (pin, "PKG002", "alpha"),
    "other label in the metadata": (relabel, "PKG002", "beta"),
    "missing": (lambda s: s.uv("pip", "uninstall", "beta"), "PKG001", "beta"),
    "missing of a default group": (lambda s: s.uv("pip", "uninstall", "gamma"), "PKG001", "gamma"),
    "metadata directory gone": (lambda s: remove(info(s, "beta")), "PKG001", "beta"),
    "forbidden": (lambda s: s.install("sglang", "1.0"), "PKG004", "sglang"),
    "forbidden directory": (lambda s: (s.site_packages / "sglang_kernel").mkdir(), "PKG004", "sglang_kernel"),
    "two dist-infos": (second_dist_info, "PKG005", "alpha"),
    "empty METADATA": (truncate("METADATA"), "PKG006", "alpha"),
    "METADATA gone": (unlink("METADATA"), "PKG006", "alpha"),
    "RECORD gone": (unlink("RECORD"), "PKG006", "alpha"),
    "left over from pip": (lambda s: (s.site_packages / "~lpha-1.0.dist-info").mkdir(), "PKG006", "~lpha"),
    "command gone": (lambda s: (s.python.parent / "say").unlink(), "PKG010", "alpha"),
    "command stolen": (lambda s: s.install("thief", "1.0"), "PKG003", "thief"),
    "other build of torch": (edit_torch(torch_version_file("+cu128", "12.8")), "BLD001", "torch"),
    "other commit of torch": (edit_torch(torch_version_file(git="f" * 40)), "BLD001", "torch"),
    "torch/version.py cut": (edit_torch("__version__ = '2.11"), "BLD001", "torch"),
    "stale lock": (stale_lock, "LCK001", "uv.lock"),
    "lock gone": (lambda s: (s.root / "uv.lock").unlink(), "LCK002", "uv.lock"),
    "lock cut": (lambda s: (s.root / "uv.lock").write_text("version = 1\n[[pack"), "LCK002", "uv.lock"),
    "lock of the future": (lambda s: (s.root / "uv.lock").write_text("version = 2\n"), "LCK002", "uv.lock"),
    "wrong Python": (wrong_python, "ENV002", "python"),
}


REPAIRABLE = DRIFT.keys() - {
    "forbidden directory",  # nobody knows whose it is
    "lock cut",  # only version control has the right one
    "lock of the future",
    "not the pinned version",  # policy and lock contradict each other
    "wrong Python",  # there is no other Python here
}


def test_a_sound_environment_has_no_finding(clean: Scratch) -> None:
    report = judge(clean)
    assert (report.findings, report.status, report.exit_code, report.repair) == ((), "pass", 0, None)


@pytest.mark.parametrize("kind", DRIFT)
def test_drift_is_named_and_nothing_else_is(scratch: Scratch, kind: str) -> None:
    inject, check_id, subject = DRIFT[kind]
    inject(scratch)
    report = judge(scratch)
    assert [(each.id, each.subject, each.status) for each in report.findings] == [(check_id, subject, "fail")]
    assert report.exit_code == 1
    assert subject.lower() in report.findings[0].message.lower()


@pytest.mark.parametrize("kind", sorted(REPAIRABLE))
def test_the_printed_repair_repairs(scratch: Scratch, kind: str) -> None:
    DRIFT[kind][0](scratch)
    repair = judge(scratch).repair
    assert repair is not None
    subprocess.run(repair, shell=True, env=scratch.environ, check=True, capture_output=True)
    assert judge(scratch).findings == ()


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
    monkeypatch.setattr("envguard.checks.build.same_version", lambda left, right: 1 / 0)
    report = judge(scratch)
    assert {(each.id, each.status) for each in report.findings} == {("BLD001", "error"), ("PKG003", "fail")}
    assert report.exit_code == 3
    with pytest.raises(CheckCrashed, match="ZeroDivisionError"):
        require("cpu", project=scratch.root, python=scratch.python)
