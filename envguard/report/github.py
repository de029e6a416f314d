"""Annotations of GitHub Actions. In: a ``Report``. Out: one workflow command a finding, and the repair.

Escaping follows the runner: ``%``, carriage return and newline in data; ``:`` and ``,`` as well in properties.
(GitHub: Workflow commands for GitHub Actions; actions/toolkit, ``command.ts``.)
"""

from __future__ import annotations

import os
from pathlib import Path

from envguard.findings import Finding
from envguard.report.model import Report
from envguard.report.text import remark, verdict

COMMANDS = {"error": "error", "fail": "error", "warn": "warning", "waived": "notice"}


def render(report: Report) -> str:
    """One line a finding, and a last one with the verdict."""
    lines = [_annotate(report, finding) for finding in report.ranked()]
    if report.repair:
        lines.append(f"::notice title=envguard repair::{escape_data(report.repair)}")
    lines.append(escape_data(verdict(report)))
    return "\n".join(lines) + "\n"


def _annotate(report: Report, finding: Finding) -> str:
    properties = {"title": f"{finding.id} {finding.subject}"}
    if (place := report.place(finding)) is not None:
        properties = {"file": _relative(place.path), "line": str(place.line), **properties}
    told = ",".join(f"{name}={escape_property(value)}" for name, value in properties.items())
    message = finding.message if finding.status == "error" else f"{finding.message}; {remark(finding)}"
    return f"::{COMMANDS[finding.status]} {told}::{escape_data(message)}"


def _relative(path: Path) -> str:
    """``path`` as the repository has it: relative to the workspace, or to the current directory outside of a runner."""
    workspace = os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    real = os.path.realpath(path)
    return os.path.relpath(real, workspace) if real.startswith(workspace + os.sep) else real


def escape_data(text: str) -> str:
    """``text`` as the message of a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """``text`` as the value of a property of a command."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")
