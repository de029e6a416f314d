"""The judgement of one environment, ready to be rendered.

In: findings. Out: a frozen ``Report`` that knows its status and exit code. It renders nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from envguard import errors
from envguard.findings import Finding, Status
from envguard.frozen import Frozen, replace
from envguard.policyfile import Place
from envguard.repair import Workplace, repair_command
from envguard.report.places import Places

RANK: dict[Status, int] = {"error": 0, "fail": 1, "warn": 2, "waived": 3, "skip": 4}
"""The order in which a report shows findings."""

ReportStatus = Literal["pass", "warn", "fail", "error"]


class Report(Frozen):
    """What was judged and what came of it."""

    profile: str
    project: Path
    env_id: str
    """Identity of what was observed (see ``envjson.py``)."""
    judged: str
    """What was looked at, in one line for a person."""
    findings: tuple[Finding, ...]
    """Everything that is not as it should be; () in a sound environment."""
    skipped: tuple[Finding, ...]
    """The checks that do not apply, with their reasons."""
    titles: dict[str, str]
    """Titles of the families of checks, by the letters of their ids."""
    workplace: Workplace | None
    """Where uv would repair; None where it cannot, for want of a lock."""
    places: Places | None = None
    """Where in the policy and the lock each finding belongs."""
    passed: tuple[str, ...] = ()
    """Ids of the checks that ran and found nothing."""
    strict: bool = False
    """Whether a warning makes the exit code 1."""

    @property
    def repair(self) -> str | None:
        """One command for all that uv can repair; None where there is nothing for it to do."""
        if self.workplace is None:
            return None
        open_findings = (finding for finding in self.findings if finding.status != "waived")
        return repair_command((finding.repair for finding in open_findings), self.workplace)

    @property
    def status(self) -> ReportStatus:
        """The gravest status of any finding: an unjudged check weighs more than a failed one, a waived one nothing."""
        found = {finding.status for finding in self.findings}
        if "error" in found:
            return "error"
        if "fail" in found:
            return "fail"
        return "warn" if "warn" in found else "pass"

    @property
    def exit_code(self) -> int:
        """0 (warnings included, unless ``strict``), 1 or 3, as ``docs/exit-codes.md`` has them."""
        if self.strict and self.status == "warn":
            return errors.FINDINGS
        return {"error": errors.CRASHED, "fail": errors.FINDINGS}.get(self.status, errors.OK)

    def ranked(self) -> list[Finding]:
        """The findings, the worst first."""
        return sorted(self.findings, key=lambda each: (RANK[each.status], each.id, each.subject))

    def place(self, finding: Finding) -> Place | None:
        """The line of the policy or the lock that ``finding`` belongs to; None where it is about neither."""
        return None if self.places is None else self.places.of(finding)

    def plus(self, others: Iterable[Finding], titles: dict[str, str]) -> Report:
        """This report with the findings of another registry's checks, and the titles of its families."""
        more = tuple(others)
        return replace(
            self,
            titles={**self.titles, **titles},
            findings=self.findings + tuple(finding for finding in more if finding.status != "skip"),
            skipped=self.skipped + tuple(finding for finding in more if finding.status == "skip"),
        )
