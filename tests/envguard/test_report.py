"""Every format: what it must say, and that nothing from an environment can break out of its place."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as SarifLog

from envguard import check_project
from envguard.findings import Finding
from envguard.frozen import replace
from envguard.report import FORMATS, Report
from envguard.report.github import escape_data, escape_property
from envguard.report.markdown import code, escape, fence
from tests.envguard.scratch import Scratch
from tests.envguard.test_waivers import add_waiver


@pytest.fixture(scope="module")
def report(clean: Scratch, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """One report with an error, a failure, a warning, a waived and a skipped finding."""
    scratch = clean.copy(tmp_path_factory.mktemp("report") / "project")
    for name in ("cowsay", "sglang"):
        scratch.install(name, "1.0")
    scratch.install("beta", "2.0")
    add_waiver(scratch, "PKG004", "sgl*")
    add_waiver(scratch, "PKG001", "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("envguard.checks.build.same_version", lambda left, right: 1 / 0)
        return check_project(scratch.root, "cpu", scratch.python, tier="standard")


HOSTILE = "a|b`c``\n::error::x,y:z%0A<b>&\"'\x00\x1b[31m]]>*_[l](u)\r\ud800\u2028é"


@pytest.fixture
def hostile(report: Report) -> Report:
    finding = next(each for each in report.findings if each.status == "fail")
    bad = replace(finding, subject=HOSTILE, message=HOSTILE, expected=HOSTILE, observed=HOSTILE, fix=HOSTILE)
    return replace(report, findings=(bad,))


def test_the_fixture_has_every_status(report: Report) -> None:
    assert [(each.id, each.status) for each in report.ranked()] == [
        ("BLD001", "error"),
        ("PKG002", "fail"),
        ("PKG003", "fail"),
        ("POL002", "warn"),
        ("PKG004", "waived"),
    ]
    assert report.skipped


def test_text_is_grouped_worst_first_and_ends_with_one_command(report: Report) -> None:
    text = FORMATS["text"](report)
    order = [text.index(word) for word in ("Builds", "error  BLD001", "Packages", "fail   PKG002", "Policy", "POL002")]
    assert order == sorted(order)
    assert text.index("PKG003") < text.index("waived PKG004") < text.index("POL002")
    assert "error: 1 not judged, 2 failed, 1 warned, 1 waived" in text
    assert text.splitlines()[-1] == f"  {report.repair}"
    assert report.repair is not None
    assert report.repair.count("sync --locked") == 1


def test_json_is_schema_1_with_added_keys_only(report: Report) -> None:
    document = json.loads(FORMATS["json"](report))
    first = ["schema", "status", "exit_code", "profile", "project", "env_id", "judged", "findings", "skipped", "repair"]
    assert list(document)[: len(first)] == first
    assert (document["schema"], document["status"], document["exit_code"]) == (1, "error", 3)
    keys = ["id", "status", "severity", "subject", "message", "expected", "observed", "fix"]
    for finding in document["findings"] + document["skipped"]:
        assert list(finding)[: len(keys)] == keys
        assert (finding["waiver"] is not None) == (finding["status"] == "waived")
    assert {"PKG001", "PKG005"} <= set(document["passed"])


def test_every_documented_json_key_exists(report: Report) -> None:
    """``docs/json-output.md`` names every key that is written, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "json-output.md").read_text()
    section = page.split("## `envguard check`")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", section, re.MULTILINE))
    document = json.loads(FORMATS["json"](report))
    waived = next(each for each in document["findings"] if each["waiver"])
    written = set(document) | {f"findings[].{key}" for key in waived}
    written |= {f"findings[].waiver.{key}" for key in waived["waiver"]}
    written |= {f"findings[].place.{key}" for key in waived["place"]}
    assert documented == written


def test_sarif_is_valid_by_its_schema(report: Report, hostile: Report) -> None:
    for each in (report, hostile, replace(report, findings=())):
        SarifLog.model_validate_json(FORMATS["sarif"](each).replace("\\ud800", ""))


def test_the_schema_can_refuse(report: Report) -> None:
    document = json.loads(FORMATS["sarif"](report))
    document["runs"][0]["results"][0]["severity"] = "bad"
    with pytest.raises(ValueError, match="severity"):
        SarifLog.model_validate(document)


def test_sarif_points_into_the_project(report: Report) -> None:
    [run] = json.loads(FORMATS["sarif"](report))["runs"]
    results = {result["ruleId"]: result for result in run["results"]}
    assert set(results) == {"PKG002", "PKG003", "PKG004", "POL002"}  # what was not judged is a notification
    assert [each["descriptor"]["id"] for each in run["invocations"][0]["toolExecutionNotifications"]] == ["BLD001"]
    assert run["invocations"][0]["executionSuccessful"] is False
    levels = {rule: result["level"] for rule, result in results.items()}
    assert levels == {"PKG002": "error", "PKG003": "error", "PKG004": "error", "POL002": "warning"}
    for rule, result in results.items():
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == rule
        assert ("suppressions" in result) == (rule == "PKG004")
    place = results["PKG002"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "uv.lock", "uriBaseId": "PROJECT"}
    lines = (report.project / "uv.lock").read_text().splitlines()
    assert lines[place["region"]["startLine"] - 1] == 'name = "beta"'
    policy = (report.project / "envguard.toml").read_text().splitlines()
    where = [results[rule]["locations"][0]["physicalLocation"] for rule in ("PKG004", "POL002")]
    assert [each["artifactLocation"]["uri"] for each in where] == ["envguard.toml"] * 2
    starts = [number for number, line in enumerate(policy, start=1) if line == "[[waivers]]"]
    assert [each["region"]["startLine"] for each in where] == starts


def test_github_annotations_are_one_command_a_line(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(report.project.parent))
    lines = FORMATS["github"](report).splitlines()
    assert [line.partition(" ")[0] for line in lines[:5]] == ["::error"] * 3 + ["::warning", "::notice"]
    assert lines[1].startswith("::error file=project/uv.lock,line=")
    assert ",title=PKG002 beta::beta 2.0 is installed" in lines[1]
    assert lines[5].startswith("::notice title=envguard repair::")


def test_github_escapes_as_documented(hostile: Report) -> None:
    assert escape_data("100%\r\n:,") == "100%25%0D%0A:,"
    assert escape_property("a:b,c%\n") == "a%3Ab%2Cc%25%0A"
    lines = FORMATS["github"](hostile).split("\n")
    assert len([line for line in lines if line.startswith("::error")]) == 1
    assert len(lines) == 4
    properties = re.fullmatch(r"::error (.*?)::(.*)", lines[0])
    assert properties is not None
    assert len(properties[1].split(",")) == 3


@given(st.text())
def test_github_escaping_can_be_undone(text: str) -> None:
    shown = escape_property(text)
    assert not set(shown) & set("\r\n:,")
    back = shown.replace("%3A", ":").replace("%2C", ",").replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert back == text


def test_markdown_has_summary_details_environment_and_repair(report: Report) -> None:
    text = FORMATS["markdown"](report)
    parts = ["## envguard: error: 1 not judged", "| `fail` | `PKG002` | `beta` | `1.0` | `2.0` |", "### Details",
             "### Environment", report.env_id, "### Repair", "```bash"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_markdown_rows_stay_rows(hostile: Report) -> None:
    text = FORMATS["markdown"](hostile)
    [row] = [line for line in text.split("\n") if line.startswith("| `fail`")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6
    assert "<b>" not in re.sub(r"`+[^`]*`+", "", row)


@given(st.text())
def test_markdown_code_cannot_be_left(text: str) -> None:
    shown = code(text, in_table=True)
    ticks = re.match("`+", shown)
    assert ticks is not None
    inner = shown[len(ticks[0]) : -len(ticks[0])]
    assert all(len(run) != len(ticks[0]) for run in re.findall("`+", inner))
    assert "\n" not in shown
    assert re.search(r"(?<!\\)\|", shown) is None
    first, *_, last = fence(text, "")
    assert first.rstrip() == last
    assert last not in text
    assert re.search(r"(?<!\\)[`*_<|\[]", escape(text).replace("\\\\", "")) is None


def test_junit_has_one_case_a_check(report: Report) -> None:
    root = ElementTree.fromstring(FORMATS["junit"](report))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    kinds = {name: [child.tag for child in case] for name, case in cases.items()}
    assert kinds["PKG002"] == ["failure"]
    assert kinds["BLD001"] == ["error"]
    assert kinds["PKG004"] == kinds["POL002"] == ["system-out"]
    assert kinds["CUD005"] == ["skipped"]
    assert kinds["PKG001"] == []
    suite = root.find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("2", "1")
    assert suite.get("tests") == str(len(cases))
    strict = ElementTree.fromstring(FORMATS["junit"](replace(report, strict=True)))
    assert [child.tag for case in strict.iter("testcase") if case.get("name") == "POL002" for child in case] == [
        "failure"
    ]


def test_junit_is_xml_whatever_is_in_it(hostile: Report) -> None:
    root = ElementTree.fromstring(FORMATS["junit"](hostile).encode("utf-8"))
    [failure] = root.iter("failure")
    assert "a|b`c``" in (failure.text or "")


def test_a_clean_report_in_every_format(clean: Scratch) -> None:
    report = check_project(clean.root, "cpu", clean.python)
    for name, render in FORMATS.items():
        assert render(report).endswith("\n"), name
    assert FORMATS["github"](report) == "ok: the environment is what the lock and the policy say\n"


def test_findings_of_others_have_no_rule_and_a_place(report: Report) -> None:
    """A report that dflash has added its own findings to renders too."""
    other = Finding(
        id="DFL001", status="fail", severity="fail", subject="g++", message="m", expected=None, observed=None, fix="f"
    )
    extended = report.plus([other], {"DFL": "Machine"})
    for render in FORMATS.values():
        assert "DFL001" in render(extended)
    SarifLog.model_validate_json(FORMATS["sarif"](extended))
