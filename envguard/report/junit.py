"""JUnit XML, which every CI system shows. In: a ``Report``. Out: one test case a check.

A check fails once for all its findings; waived findings and warnings stand in its output. Characters that XML cannot
hold are replaced.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from envguard.findings import Finding
from envguard.report.model import Report
from envguard.report.text import remark

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """The document with a newline at its end."""
    cases: dict[str, list[Finding]] = {check_id: [] for check_id in report.passed}
    for finding in (*report.ranked(), *report.skipped):
        cases.setdefault(finding.id, []).append(finding)
    bodies = {check_id: _case(check_id, found, strict=report.strict) for check_id, found in sorted(cases.items())}
    counts = {tag: sum(f"<{tag}" in body for body in bodies.values()) for tag in ("failure", "error", "skipped")}
    name = _attribute(f"envguard {report.profile}")
    numbers = f'tests="{len(bodies)}" failures="{counts["failure"]}" errors="{counts["error"]}"'
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites {numbers}>"]
    lines.append(f'<testsuite name={name} {numbers} skipped="{counts["skipped"]}">')
    return "\n".join([*lines, *bodies.values(), "</testsuite>", "</testsuites>"]) + "\n"


def _case(check_id: str, findings: list[Finding], *, strict: bool) -> str:
    failing = ("fail", "warn") if strict else ("fail",)
    inside = ""
    errors = [finding for finding in findings if finding.status == "error"]
    failed = [finding for finding in findings if finding.status in failing]
    skipped = [finding for finding in findings if finding.status == "skip"]
    others = [finding for finding in findings if finding.status in ("warn", "waived") and finding not in failed]
    for tag, found in (("error", errors), ("failure", failed), ("skipped", skipped)):
        if found:
            message = _attribute(found[0].message)
            text = "" if tag == "skipped" else _text("\n".join(f"{each.message}; {remark(each)}" for each in found))
            inside += f"<{tag} message={message}>{text}</{tag}>"
    if others:
        inside += (
            f"<system-out>{_text(chr(10).join(f'{e.status}: {e.message}; {remark(e)}' for e in others))}</system-out>"
        )
    return f'<testcase classname="envguard.{check_id[:3]}" name="{check_id}">{inside}</testcase>'


def _text(text: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\ufffd", text))
