"""Markdown for an issue or a pull request. In: a ``Report``. Out: summary table, details, environment, repair.

What comes from the environment is escaped or fenced, so that no name or message can break out of its place.
"""

from __future__ import annotations

import re

from envguard.findings import Finding
from envguard.report.model import Report
from envguard.report.text import remark, verdict


def render(report: Report) -> str:
    """The page with a newline at its end."""
    lines = [f"## envguard: {escape(verdict(report))}", ""]
    findings = report.ranked()
    if findings:
        lines += ["| status | check | subject | expected | observed |", "|---|---|---|---|---|"]
        lines += [_row(finding) for finding in findings]
        lines += ["", "### Details", ""]
        lines += [f"- **{each.id}** {escape(each.message)}  \n  {escape(remark(each))}" for each in findings]
        lines.append("")
    lines += ["### Environment", "", f"- {escape(report.judged)}", f"- profile {code(report.profile)}"]
    lines += [f"- env_id {code(report.env_id)}", f"- {len(report.passed)} checks passed"]
    lines += [f"- skipped {each.id}: {escape(each.message)}" for each in report.skipped]
    if report.repair:
        lines += ["", "### Repair", "", *fence(report.repair, "bash")]
    return "\n".join(lines) + "\n"


def _row(finding: Finding) -> str:
    cells = (finding.status, finding.id, finding.subject, finding.expected or "", finding.observed or "")
    return f"| {' | '.join(code(cell, in_table=True) if cell else '' for cell in cells)} |"


def escape(text: str) -> str:
    """``text`` as plain words of one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def code(text: str, *, in_table: bool = False) -> str:
    """``text`` as code; longer runs of backticks around it than in it, and no pipe that would end a cell."""
    line = " ".join(text.split())
    ticks = "`" * (_longest_run(line) + 1)
    pad = " " if "`" in line else ""
    shown = f"{ticks}{pad}{line}{pad}{ticks}"
    return shown.replace("|", "\\|") if in_table else shown


def fence(text: str, language: str) -> list[str]:
    """``text`` as a block of code."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return [f"{ticks}{language}", text, ticks]


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
