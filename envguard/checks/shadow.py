"""SHD: what a watched import resolves to. In: an ``Inspection``. Out: problems."""

from __future__ import annotations

from envguard.findings import Check
from envguard.inspection import Inspection

CHECKS: tuple[Check[Inspection], ...] = ()
