"""The JSON report, schema 1. In: a ``Report``. Out: one document, indented, keys in a fixed order.

``docs/json-output.md`` describes it. Within a schema keys are only added.
"""

from __future__ import annotations

import json
from typing import Any

from envguard.findings import Finding
from envguard.policy import Waiver
from envguard.report.model import Report

SCHEMA = 1


def render(report: Report) -> str:
    """The document as text with a newline at its end."""
    document = {
        "schema": SCHEMA,
        "status": report.status,
        "exit_code": report.exit_code,
        "profile": report.profile,
        "project": str(report.project),
        "env_id": report.env_id,
        "judged": report.judged,
        "findings": [_finding(report, finding) for finding in report.findings],
        "skipped": [_finding(report, finding) for finding in report.skipped],
        "repair": report.repair,
        "passed": list(report.passed),
    }
    return json.dumps(document, indent=2) + "\n"


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    place = report.place(finding) if finding.status != "skip" else None
    return {
        "id": finding.id,
        "status": finding.status,
        "severity": finding.severity,
        "subject": finding.subject,
        "message": finding.message,
        "expected": finding.expected,
        "observed": finding.observed,
        "fix": finding.fix,
        "waiver": None if finding.waiver is None else _waiver(finding.waiver),
        "place": None if place is None else {"path": str(place.path), "line": place.line},
    }


def _waiver(waiver: Waiver) -> dict[str, str]:
    return {
        "match": waiver.match,
        "reason": waiver.reason,
        "owner": waiver.owner,
        "expires": waiver.expires.isoformat(),
    }
