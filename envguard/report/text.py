"""The report for a person. In: a ``Report``. Out: plain text: groups, the worst first, and the one command at the end.

No colour and no width of a terminal: it reads the same in a log file.
"""

from __future__ import annotations

from itertools import groupby

from envguard.findings import Finding
from envguard.report.model import Report

_RANK = {"error": 0, "fail": 1, "warn": 2, "skip": 3}


def render(report: Report) -> str:
    """The report as lines with a newline at the end."""
    lines = [f"{report.judged}; profile {report.profile}", ""]
    for family, findings in _groups(report.findings):
        lines.append(report.titles[family])
        for fix, same in groupby(findings, key=lambda each: each.fix):
            lines += [f"  {finding.status:<5} {finding.id}  {finding.message}" for finding in same]
            lines.append(f"                 fix: {fix}")
        lines.append("")
    lines += [f"skip   {finding.id}  {finding.message}" for finding in report.skipped]
    lines.append(_verdict(report))
    if report.repair:
        lines += ["", "Repair:", f"  {report.repair}"]
    return "\n".join(lines) + "\n"


def _groups(findings: tuple[Finding, ...]) -> list[tuple[str, list[Finding]]]:
    groups: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda each: (_RANK[each.status], each.id, each.subject)):
        groups.setdefault(finding.id[:3], []).append(finding)
    return list(groups.items())  # in the order of each group's worst finding


def _verdict(report: Report) -> str:
    if report.status == "pass":
        return "ok: the environment is what the lock and the policy say"
    counts = {status: sum(finding.status == status for finding in report.findings) for status in _RANK}
    named = {"error": "not judged", "fail": "failed", "warn": "warned"}
    said = ", ".join(f"{counts[status]} {word}" for status, word in named.items() if counts[status])
    return f"{report.status}: {said}"
