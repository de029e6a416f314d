"""POL: the policy itself. In: an ``Inspection`` that holds what the other checks found. Out: problems.

These run last. The rest of what can be wrong with a policy, unknown keys above all, refuses the file before anything
is judged (exit 2), so that POL003 never appears in a report.
"""

from __future__ import annotations

from collections.abc import Iterable

from envguard.findings import Check, Problem
from envguard.inspection import Inspection
from envguard.waivers import is_live, matches


def is_about_policy(check_id: str) -> bool:
    """Whether a check is of this family: it runs last, and no waiver covers it."""
    return check_id.startswith("POL")


def _expired(case: Inspection) -> Iterable[Problem]:
    for waiver in case.policy.waivers:
        if not is_live(waiver, case.today):
            yield Problem(
                subject=f"{waiver.check} {waiver.match}",
                message=f"the waiver of {waiver.owner} for {waiver.check} {waiver.match} has expired on "
                f"{waiver.expires} ({waiver.reason})",
                expected=f"at least {case.today}",
                observed=str(waiver.expires),
            )


def _unused(case: Inspection) -> Iterable[Problem]:
    for waiver in case.policy.waivers:
        was_judged = waiver.check in case.judged
        if is_live(waiver, case.today) and was_judged and not any(matches(waiver, each) for each in case.found):
            yield Problem(
                subject=f"{waiver.check} {waiver.match}",
                message=f"the waiver of {waiver.owner} for {waiver.check} {waiver.match} covers nothing",
            )


def _known_keys(case: Inspection) -> Iterable[Problem]:
    """Nothing: a policy with an unknown key is refused while it is read (``strict.py``), and no check runs."""
    return ()


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="POL001",
        summary="no waiver has expired",
        why="A waiver is a promise to look again. After its day the finding that it covered counts again, and the "
        "waiver itself fails, so that the promise is kept or renewed by a person.",
        fix="repair what it covers, or renew it with a new expiry and reason",
        run=_expired,
        example="the waiver of training-team for PKG003 ipython has expired on 2026-09-30 (debug box)",
    ),
    Check(
        id="POL002",
        summary="every waiver covers something",
        why="A waiver that is left behind hides the next finding of its kind. It is judged only where its check was.",
        fix="delete it from the policy",
        run=_unused,
        severity="warn",
        example="the waiver of training-team for PKG003 ipython covers nothing",
    ),
    Check(
        id="POL003",
        summary="the policy has no unknown key",
        why="A key with a typing error would be a rule that nobody keeps. The file is refused before anything is "
        "judged: one line on stderr a problem, with file and line, and exit 2.",
        fix="use the key that the message names",
        run=_known_keys,
        example="envguard.toml:7: distributions.forbiden: unknown key, nearest known key: forbid (POL003)",
    ),
)
