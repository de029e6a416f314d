"""The good environment that a policy refers to: an ``env.json`` that ``envguard freeze`` wrote earlier.

In: the file. Out: a ``Recorded`` with the facts that checks compare with. What is wrong with the file
is a value. It judges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from envguard.frozen import NOTHING, Frozen


class Recorded(Frozen):
    """What was observed when the environment was good."""

    path: Path
    variables: Mapping[str, str] | None
    """None where they were not recorded."""
    code: Mapping[str, str] | None
    """Path → sha256 of the project's own files; None where they were not recorded."""
    distributions: Mapping[str, tuple[str, str | None]] = NOTHING
    """Name to version and fingerprint."""
    problem: str | None = None
    """Why nothing can be compared, None where it can."""


def load_recorded(path: Path) -> Recorded:
    """Read the file."""
    try:
        document = json.loads(path.read_bytes())
        code = document.get("code")
        return Recorded(
            path=path,
            variables={str(name): str(value) for name, value in document["facts"]["variables"].items()},
            distributions={
                str(each["name"]): (str(each["version"]), each.get("fingerprint"))
                for each in document["facts"]["distributions"]
            },
            code=None if code is None else {str(name): str(value) for name, value in code["files"].items()},
        )
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = f"{path} is no env.json of envguard freeze"
    return Recorded(path=path, variables=None, code=None, problem=problem)
