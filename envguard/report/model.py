"""The judgement of one environment, ready to be rendered.

In: findings. Out: a frozen ``Report`` that knows its status and exit code. It renders nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envguard import errors
from envguard.findings import Finding
from envguard.repair import Workplace, repair_command

ReportStatus = Literal["pass", "warn", "fail", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
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

    @property
    def repair(self) -> str | None:
        """One command for all that uv can repair; None where there is nothing for it to do."""
        if self.workplace is None:
            return None
        return repair_command((finding.repair for finding in self.findings), self.workplace)

    @property
    def status(self) -> ReportStatus:
        """The gravest status of any finding: an unjudged check weighs more than a failed one."""
        found = {finding.status for finding in self.findings}
        if "error" in found:
            return "error"
        if "fail" in found:
            return "fail"
        return "warn" if "warn" in found else "pass"

    @property
    def exit_code(self) -> int:
        """0 (warnings included), 1 or 3, as ``docs/exit-codes.md`` has them."""
        return {"error": errors.CRASHED, "fail": errors.FINDINGS}.get(self.status, errors.OK)

    def plus(self, others: Iterable[Finding], titles: dict[str, str]) -> Report:
        """This report with the findings of another registry's checks, and the titles of its families."""
        more = tuple(others)
        return dataclasses.replace(
            self,
            titles={**self.titles, **titles},
            findings=self.findings + tuple(finding for finding in more if finding.status != "skip"),
            skipped=self.skipped + tuple(finding for finding in more if finding.status == "skip"),
        )
