"""The JSON report, schema 1. In: a ``Report``. Out: one document, indented, keys in a fixed order."""

from __future__ import annotations

import json
from typing import Any

from envguard.findings import Finding
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
        "findings": [_finding(finding) for finding in report.findings],
        "skipped": [_finding(finding) for finding in report.skipped],
        "repair": report.repair,
    }
    return json.dumps(document, indent=2) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "status": finding.status,
        "severity": finding.severity,
        "subject": finding.subject,
        "message": finding.message,
        "expected": finding.expected,
        "observed": finding.observed,
        "fix": finding.fix,
    }
