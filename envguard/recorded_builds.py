"""The recorded environment that a policy names: an ``env.json`` of a good one.

In: its path. Out: ``RecordedBuilds``; what is wrong with the file is a value, so that a check can report it beside all
others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedBuilds:
    """What checks compare with."""

    path: Path
    distributions: dict[str, tuple[str, str | None]]
    """Name to (version, fingerprint)."""
    problem: str | None
    """Why nothing can be compared, None where it can."""


def read_recorded_builds(path: Path) -> RecordedBuilds:
    """Read an ``env.json``."""
    try:
        document = json.loads(path.read_bytes())
        entries = document["facts"]["distributions"]
        distributions = {str(each["name"]): (str(each["version"]), each.get("fingerprint")) for each in entries}
    except OSError as error:
        return _unusable(path, f"cannot be read ({error.strerror})")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return _unusable(path, f"is no env.json of envguard freeze ({type(error).__name__}: {error})")
    if not any(fingerprint for _, fingerprint in distributions.values()):
        return _unusable(path, "holds no fingerprint: it was written by an older envguard")
    return RecordedBuilds(path=path, distributions=distributions, problem=None)


def _unusable(path: Path, what: str) -> RecordedBuilds:
    return RecordedBuilds(
        path=path, distributions={}, problem=f"{path} {what}: write it anew with envguard freeze -o {path.name}"
    )
