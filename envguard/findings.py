"""Checks and what they find.

In: ``Check`` objects and the context that they judge. Out: ``Finding``s, in the order of the checks. A check is a pure
function that yields ``Problem``s or returns ``Skip``; ``run_checks`` stamps them with the check's id and severity. A
check that raises becomes an ``error`` finding while the others go on: what could not be judged never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Literal, TypeVar

from envguard.errors import ToolError
from envguard.frozen import Frozen
from envguard.policy import Severity, Waiver

Status = Literal["error", "fail", "warn", "waived", "skip"]
Tier = Literal["fast", "standard", "deep", "gpu"]
"""``fast`` lists and reads small files (every start of a run); ``standard`` also compares what is installed with RECORD
and asks uv and git (``envguard check``, CI); ``deep`` hashes every file; ``gpu`` starts torch in a subprocess. Each one
includes those before it, save that ``gpu`` does not include ``deep``."""

INCLUDED: dict[Tier, tuple[Tier, ...]] = {
    "fast": ("fast",),
    "standard": ("fast", "standard"),
    "deep": ("fast", "standard", "deep"),
    "gpu": ("fast", "standard", "gpu"),
}
"""The tiers whose checks a judgement of that tier runs."""

Context = TypeVar("Context")


class Repair(Frozen):
    """What uv has to do about a finding; the repairs of all findings merge into one command."""

    lock: bool = False
    sync: bool = False
    reinstall: tuple[str, ...] = ()
    """Distributions that are the right version by name and wrong by content."""
    clean: tuple[str, ...] = ()
    """Distributions whose wheel in uv's cache is wrong too: it is dropped before the reinstallation."""
    delete: tuple[str, ...] = ()
    """Files and directories that uv cannot remove, since no RECORD says whose they are."""
    python: str | None = None
    """Specifier of the Python that the environment must be made anew with."""


NO_REPAIR = Repair()


class Problem(Frozen):
    """One thing that a check found wrong."""

    subject: str
    """What is wrong: a distribution, a file, a variable."""
    message: str
    """One sentence for a person."""
    expected: str | None = None
    observed: str | None = None
    fix: str | None = None
    """Overrides the check's own fix."""
    severity: Severity | None = None
    """Overrides the check's own severity."""
    repair: Repair = NO_REPAIR


class Skip(Frozen):
    """The check does not apply, which is neither a pass nor a failure."""

    reason: str


class Check(Frozen, Generic[Context]):
    """One entry of a registry."""

    id: str
    summary: str
    """What it asserts, without a full stop."""
    why: str
    fix: str
    run: Callable[[Context], Iterable[Problem] | Skip]
    severity: Severity = "fail"
    tier: Tier = "fast"
    example: str = ""
    """What a finding of it says, for the page about it."""


class Finding(Frozen):
    """One result that a report shows."""

    id: str
    status: Status
    severity: Severity
    """What it weighs when it applies; ``status`` says what became of it."""
    subject: str
    message: str
    expected: str | None
    observed: str | None
    fix: str
    repair: Repair = NO_REPAIR
    waiver: Waiver | None = None
    """Why a finding with the status ``waived`` does not count."""


def run_checks(checks: Sequence[Check[Context]], context: Context) -> tuple[Finding, ...]:
    """Run every check; no exception of a check leaves this function."""
    return tuple(finding for check in checks for finding in _run(check, context))


def _run(check: Check[Context], context: Context) -> list[Finding]:
    try:
        outcome = check.run(context)
        problems = [] if isinstance(outcome, Skip) else list(outcome)
    except ToolError as error:
        return [_unjudged(check, "error", str(error))]
    except Exception as error:  # a bug in one check must not hide what the others see
        return [_unjudged(check, "error", f"the check crashed, which is a bug: {type(error).__name__}: {error}")]
    if isinstance(outcome, Skip):
        return [_unjudged(check, "skip", outcome.reason)]
    return [make_finding(check, problem) for problem in problems]


def make_finding(check: Check[Context], problem: Problem) -> Finding:
    """A problem as its check's finding, also where something other than ``check.run`` has met it."""
    severity = problem.severity or check.severity
    return Finding(
        id=check.id,
        status=severity,
        severity=severity,
        subject=problem.subject,
        message=problem.message,
        expected=problem.expected,
        observed=problem.observed,
        fix=problem.fix or check.fix,
        repair=problem.repair,
    )


def _unjudged(check: Check[Context], status: Status, message: str) -> Finding:
    return Finding(
        id=check.id,
        status=status,
        severity=check.severity,
        subject=check.id,
        message=message,
        expected=None,
        observed=None,
        fix=check.fix,
    )
