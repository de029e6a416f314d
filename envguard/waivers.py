"""Waivers against findings: what is known, accepted and owned does not count, and stays visible.

In: findings, the policy's waivers and the day. Out: the findings, those that a live waiver matches with the status
``waived``. What could not be judged is never waived. Expired and unused waivers are findings of their own
(``checks/policies.py``).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from envguard.findings import Finding
from envguard.frozen import replace
from envguard.policy import Waiver


def is_live(waiver: Waiver, today: datetime.date) -> bool:
    """Whether it still holds: its day of expiry is the last one."""
    return waiver.expires >= today


def matches(waiver: Waiver, finding: Finding) -> bool:
    """Whether ``waiver`` is about ``finding``, whatever became of it."""
    return finding.id == waiver.check and fnmatchcase(finding.subject, waiver.match)


def waive(findings: Iterable[Finding], waivers: Sequence[Waiver], today: datetime.date) -> tuple[Finding, ...]:
    """``findings``, each that fails or warns under its first live waiver."""
    live = [waiver for waiver in waivers if is_live(waiver, today)]
    return tuple(_judge(finding, live) for finding in findings)


def _judge(finding: Finding, live: Sequence[Waiver]) -> Finding:
    if finding.status not in ("fail", "warn"):
        return finding
    for waiver in live:
        if matches(waiver, finding):
            return replace(finding, status="waived", waiver=waiver)
    return finding
