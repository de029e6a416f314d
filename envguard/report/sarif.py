"""SARIF 2.1.0, which code-scanning services read. In: a ``Report``. Out: one log with one run.

Rules are all checks that were judged; a waived finding is a result that is suppressed. Places are relative to the
project where they lie in it, as a service wants them. (OASIS: Static Analysis Results Interchange Format 2.1.0.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envguard.findings import Finding
from envguard.policyfile import Place
from envguard.report.model import Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "fail": "error", "warn": "warning"}


def render(report: Report) -> str:
    """The log as text with a newline at its end."""
    findings = report.ranked()
    ids = sorted({finding.id for finding in findings} | set(report.passed))
    run = {
        "tool": {"driver": {"name": "envguard", "rules": [_rule(check_id) for check_id in ids]}},
        "automationDetails": {"id": f"envguard/{report.profile}"},
        "originalUriBaseIds": {"PROJECT": {"uri": f"{report.project.resolve().as_uri()}/"}},
        "invocations": [_invocation(report)],
        "results": [_result(report, finding, ids) for finding in findings if finding.status != "error"],
        "properties": {"env_id": report.env_id, "judged": report.judged, "repair": report.repair},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(check_id: str) -> dict[str, Any]:
    from envguard.registry import CHECKS

    rule: dict[str, Any] = {"id": check_id}
    for check in CHECKS:
        if check.id == check_id:
            rule["shortDescription"] = {"text": f"{check.summary}."}
            rule["fullDescription"] = {"text": check.why}
            rule["help"] = {"text": f"{check.fix}. More: envguard explain {check.id}"}
            rule["defaultConfiguration"] = {"level": LEVELS[check.severity]}
    return rule


def _invocation(report: Report) -> dict[str, Any]:
    """A check that could not be judged is no result about the project but a failure of the tool."""
    return {
        "executionSuccessful": report.status != "error",
        "exitCode": report.exit_code,
        "toolExecutionNotifications": [
            {
                "descriptor": {"id": finding.id},
                "level": "error",
                "message": {"text": f"{finding.id} could not be judged: {finding.message}"},
            }
            for finding in report.findings
            if finding.status == "error"
        ],
    }


def _result(report: Report, finding: Finding, ids: list[str]) -> dict[str, Any]:
    place = report.place(finding)
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": ids.index(finding.id),
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. Fix: {finding.fix}"},
        "partialFingerprints": {"envguardFinding/v1": f"{report.profile}:{finding.id}:{finding.subject}"},
        "properties": {
            "subject": finding.subject,
            "expected": finding.expected,
            "observed": finding.observed,
        },
    }
    if place is not None:
        result["locations"] = [_location(report.project, place)]
    if finding.waiver is not None:
        why = f"{finding.waiver.reason} ({finding.waiver.owner}, until {finding.waiver.expires})"
        # No status: its name differs between editions of the schema (state, status), and none means accepted.
        result["suppressions"] = [{"kind": "external", "justification": why}]
    return result


def _location(project: Path, place: Place) -> dict[str, Any]:
    path, home = place.path.resolve(), project.resolve()
    artifact: dict[str, Any] = {"uri": path.as_uri()}
    if path.is_relative_to(home):
        artifact = {"uri": path.relative_to(home).as_posix(), "uriBaseId": "PROJECT"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": place.line}}}
