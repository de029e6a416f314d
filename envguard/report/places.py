"""Which line of the project's files a finding belongs to: of the policy that asks for it, or of the lock.

In: a finding. Out: a ``Place``. Formats that annotate files (SARIF, GitHub) need one; an environment itself is in no
repository. The lock is only read when a line of it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from envguard.findings import Finding
from envguard.frozen import Frozen
from envguard.pkg import canonical
from envguard.policy import Policy
from envguard.policyfile import Place
from envguard.tomllines import Key

KEYS: dict[str, tuple[str, ...]] = {
    "ENV002": ("profiles", "*", "python"),
    "PKG004": ("distributions", "forbid"),
    "BLD001": ("profiles", "*", "torch"),
    "BLD002": ("recorded",),
    "CUD003": ("profiles", "*", "driver"),
    "CUD005": ("profiles", "*", "jit"),
    "INT005": ("files", "allow-unowned"),
    "INT004": ("files", "allow-overlap"),
    "SRC001": ("recorded",),
    "SRC002": ("source",),
    "RUN001": ("profiles", "*", "env"),
    "LCK003": ("distributions", "watched"),
}
"""The key of the policy that a check goes by; ``*`` is the profile. Of any other check it is the profile itself."""

IN_LOCK = ("LCK", "PKG")
"""Families that are about what the lock says, save the ids in ``KEYS``."""


class Places(Frozen):
    """The files that a judgement went by."""

    policy: Policy
    profile: str
    lock: Path

    def of(self, finding: Finding) -> Place:
        """The place of ``finding``."""
        if finding.id.startswith("POL") or finding.waiver is not None:
            return self._waiver(finding)
        if finding.id == "SRC003":
            path, _, line = finding.subject.rpartition(":")
            if line.isdigit():
                return Place(path=self.policy.path.parent / path, line=int(line))
        if finding.id in KEYS:
            return self.policy.where(*(self.profile if part == "*" else part for part in KEYS[finding.id]))
        if finding.id.startswith(IN_LOCK) and self.lock.is_file():
            return Place(path=self.lock, line=_package_lines(self.lock).get(canonical(finding.subject), 1))
        return self.policy.where("profiles", self.profile)

    def _waiver(self, finding: Finding) -> Place:
        for index, waiver in enumerate(self.policy.waivers):
            if waiver == finding.waiver or f"{waiver.check} {waiver.match}" == finding.subject:
                key: Key = ("waivers", index)
                return self.policy.where(*key)
        return Place(path=self.policy.path, line=1)


@functools.lru_cache(maxsize=4)
def _package_lines(lock: Path) -> Mapping[str, int]:
    """The line on which each locked package begins; {} where the lock cannot be read, which LCK002 reports."""
    try:
        lines = lock.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if line.startswith('name = "') and lines[number - 2] == "[[package]]":
            found.setdefault(canonical(line.split('"')[1]), number)
    return found
