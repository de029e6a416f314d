"""The report for a person. In: a ``Report``. Out: plain text: groups, the worst first, and the one command at the end.

No colour and no width of a terminal: it reads the same in a log file.
"""

from __future__ import annotations

from itertools import groupby

from envguard.findings import Finding, Status
from envguard.report.model import RANK, Report


def render(report: Report) -> str:
    """The report as lines with a newline at the end."""
    lines = [f"{report.judged}; profile {report.profile}", ""]
    for family, findings in groups(report):
        lines.append(report.titles[family])
        for _, same in groupby(findings, key=lambda each: (each.fix, each.waiver)):
            shown = list(same)
            lines += [f"  {finding.status:<6} {finding.id}  {finding.message}" for finding in shown]
            lines.append(f"                  {remark(shown[0])}")
        lines.append("")
    lines += [f"skip     {finding.id}  {finding.message}" for finding in report.skipped]
    lines.append(verdict(report))
    if report.repair:
        lines += ["", "Repair:", f"  {report.repair}"]
    return "\n".join(lines) + "\n"


def groups(report: Report) -> list[tuple[str, list[Finding]]]:
    """The findings by family, in the order of each family's worst finding."""
    found: dict[str, list[Finding]] = {}
    for finding in report.ranked():
        found.setdefault(finding.id[:3], []).append(finding)
    return list(found.items())


def remark(finding: Finding) -> str:
    """What to do about ``finding``, or who answers for it."""
    if finding.waiver is None:
        return f"fix: {finding.fix}"
    return f"waived by {finding.waiver.owner} until {finding.waiver.expires}: {finding.waiver.reason}"


def verdict(report: Report) -> str:
    """One line: the status, and how many findings of each kind there are."""
    counts = {status: sum(finding.status == status for finding in report.findings) for status in RANK}
    waived = f" ({counts['waived']} waived)" if counts["waived"] else ""
    if report.status == "pass":
        return f"ok: the environment is what the lock and the policy say{waived}"
    named: tuple[tuple[Status, str], ...] = (
        ("error", "not judged"),
        ("fail", "failed"),
        ("warn", "warned"),
        ("waived", "waived"),
    )
    said = ", ".join(f"{counts[status]} {word}" for status, word in named if counts[status])
    strict = "; with --strict a warning counts" if report.strict and report.status == "warn" else ""
    return f"{report.status}: {said}{strict}"
