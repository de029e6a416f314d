"""What the checks judge: one environment, the policy's profile for it, and what the lock expects.

In: values that others have read. Out: the frozen ``Inspection`` that every check receives. It reads nothing.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from envguard.expect import Expected
from envguard.findings import Finding, Skip
from envguard.frozen import Frozen
from envguard.observe import Observation
from envguard.policy import Policy, Profile
from envguard.surroundings import Surroundings

if TYPE_CHECKING:
    from envguard.base import Base
    from envguard.probes.uv_lock import LockCheck


class Inspection(Frozen):
    """One judgement's input."""

    observation: Observation
    policy: Policy
    profile: Profile
    lock: Path
    """Where the profile's lock is or should be."""
    lock_exists: bool
    expected: Expected | None
    """None where there is no readable lock."""
    lock_problem: str | None
    """Why ``expected`` is None; None where it is not."""
    project_venv: Path
    """The environment that ``uv sync`` of this project would write to."""
    python_was_named: bool
    """Whether the user chose the judged interpreter."""
    lock_check: LockCheck | None
    """uv's own verdict; None in the fast tier."""
    base: Base | None
    """What the lock and the policy were before a change; None where no base was named."""
    today: datetime.date
    """The day that waivers are judged by."""
    around: Surroundings = Surroundings()
    """What only some tiers and policies ask for."""
    found: tuple[Finding, ...] = ()
    """What the other checks found; only the checks of the policy itself, which run last, may look at it."""
    judged: frozenset[str] = frozenset()
    """Ids of the checks that came to a verdict, for the same."""

    def without_lock(self) -> Skip:
        """The skip of every check that needs the lock."""
        return Skip(reason=f"there is no lock to compare with: {self.lock_problem}")
