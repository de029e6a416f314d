"""Waivers against real drift: what they cover does not count and stays visible, until their day."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from envguard import check_project
from envguard.findings import Check, Finding, Problem, run_checks
from envguard.policy import Waiver
from envguard.report import FORMATS, Report
from envguard.waivers import waive
from tests.envguard.scratch import Scratch

TODAY = datetime.datetime.now(datetime.UTC).date()


def add_waiver(scratch: Scratch, check: str, match: str, days: int = 30) -> None:
    path = scratch.root / "envguard.toml"
    keys = f"check = '{check}'\nmatch = '{match}'\nreason = 'debug | box'\nowner = 'team'\n"
    expires = f"expires = {TODAY + datetime.timedelta(days=days)}\n"
    path.write_text(f"{path.read_text()}\n[[waivers]]\n{keys}{expires}")


def judge(scratch: Scratch, **options: object) -> Report:
    return check_project(scratch.root, "cpu", scratch.python, tier="standard", **options)  # type: ignore[arg-type]


def told(report: Report) -> list[tuple[str, str, str]]:
    return [(each.id, each.subject, each.status) for each in report.findings]


def test_a_waived_finding_does_not_count_and_stays_visible(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    add_waiver(scratch, "PKG003", "cow*")
    report = judge(scratch)
    assert told(report) == [("PKG003", "cowsay", "waived")]
    assert (report.status, report.exit_code, report.repair) == ("pass", 0, None)
    assert judge(scratch, strict=True).exit_code == 0
    expires = str(TODAY + datetime.timedelta(days=30))
    for name, render in FORMATS.items():
        text = render(report)
        assert "PKG003" in text, name
        assert expires in text, name
        assert "team" in text, name
        assert "debug" in text, name
    [finding] = json.loads(FORMATS["json"](report))["findings"]
    assert (finding["status"], finding["severity"]) == ("waived", "fail")
    assert finding["waiver"] == {"match": "cow*", "reason": "debug | box", "owner": "team", "expires": expires}
    policy = scratch.root / "envguard.toml"
    line = policy.read_text().splitlines().index("[[waivers]]") + 1
    assert finding["place"] == {"path": str(policy), "line": line}


def test_only_what_it_matches_is_waived(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    scratch.install("beta", "2.0")
    add_waiver(scratch, "PKG003", "cowsay")
    report = judge(scratch)
    assert told(report) == [("PKG002", "beta", "fail"), ("PKG003", "cowsay", "waived")]
    assert report.exit_code == 1
    assert report.repair is not None


def test_an_expired_waiver_fails_beside_what_it_covered(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    add_waiver(scratch, "PKG003", "cowsay", days=-1)
    report = judge(scratch)
    assert told(report) == [("PKG003", "cowsay", "fail"), ("POL001", "PKG003 cowsay", "fail")]
    assert report.exit_code == 1
    scratch.uv("pip", "uninstall", "cowsay")
    assert told(judge(scratch)) == [("POL001", "PKG003 cowsay", "fail")]


def test_a_waiver_holds_on_its_last_day(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    add_waiver(scratch, "PKG003", "cowsay", days=0)
    assert told(judge(scratch)) == [("PKG003", "cowsay", "waived")]


def test_an_unused_waiver_warns_where_its_check_was_judged(scratch: Scratch) -> None:
    add_waiver(scratch, "PKG003", "cowsay")
    add_waiver(scratch, "CUD006", "torch")  # of a tier that does not run here
    add_waiver(scratch, "CUD005", "nvcc")  # skipped: the profile compiles nothing
    report = judge(scratch)
    assert told(report) == [("POL002", "PKG003 cowsay", "warn")]
    assert report.exit_code == 0
    assert judge(scratch, strict=True).exit_code == 1
    assert told(judge(scratch, select=["BLD", "POL"])) == []
    assert told(judge(scratch, ignore=["POL002"])) == []


def test_two_waivers_may_cover_one_finding_and_neither_is_unused(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    add_waiver(scratch, "PKG003", "cowsay")
    add_waiver(scratch, "PKG003", "*")
    assert told(judge(scratch)) == [("PKG003", "cowsay", "waived")]


def test_what_could_not_be_judged_is_never_waived(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    add_waiver(scratch, "BLD001", "*")
    monkeypatch.setattr("envguard.checks.build.same_version", lambda left, right: 1 / 0)
    report = judge(scratch)
    assert told(report) == [("BLD001", "BLD001", "error")]
    assert report.exit_code == 3


def test_warnings_can_be_waived_too() -> None:
    problem = Problem(subject="x", message="m", severity="warn")
    check: Check[None] = Check(id="ABC001", summary="s", why="w", fix="f", run=lambda _: [problem])
    waiver = Waiver(check="ABC001", match="[xy]", reason="r", owner="o", expires=TODAY)
    found: tuple[Finding, ...] = run_checks([check], None)
    assert [each.status for each in waive(found, [waiver], TODAY)] == ["waived"]
    assert waive(found, [waiver], TODAY + datetime.timedelta(days=1)) == found


def test_an_unknown_key_is_refused_with_its_id(scratch: Scratch, tmp_path: Path) -> None:
    from tests.envguard.test_cli import envguard

    path = scratch.root / "envguard.toml"
    path.write_text(path.read_text().replace("forbid =", "forbiden ="))
    done = envguard("check", "--project", str(scratch.root))
    assert done.returncode == 2
    line = path.read_text().splitlines().index('forbiden = ["sglang*"]') + 1
    assert done.stderr == (
        f"error: {path}:{line}: distributions.forbiden: unknown key, nearest known key: forbid (POL003)\n"
    )
