"""SRC: the project's own code. In: an ``Inspection``. Out: problems."""

from __future__ import annotations

from envguard.findings import Check
from envguard.inspection import Inspection

CHECKS: tuple[Check[Inspection], ...] = ()
