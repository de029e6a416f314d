"""The good environment that a policy refers to: an ``env.json`` that ``envguard freeze`` wrote earlier.

In: the file. Out: a ``Recorded`` with the facts that checks compare with. It judges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envguard.errors import PolicyError


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """What was observed when the environment was good."""

    path: Path
    variables: Mapping[str, str]
    code: Mapping[str, str] | None
    """Path → sha256 of the project's own files; None where they were not recorded."""


def load_recorded(path: Path) -> Recorded:
    """Read the file.

    Raises:
        PolicyError: it is not there, or is no ``env.json``.
    """
    try:
        document = json.loads(path.read_bytes())
        variables = document["facts"]["variables"]
        code = document.get("code")
        return Recorded(
            path=path,
            variables={str(name): str(value) for name, value in variables.items()},
            code=None if code is None else {str(name): str(value) for name, value in code["files"].items()},
        )
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        what = "is no env.json"
    raise PolicyError(f"recorded: {path} {what}: write it in the good environment with envguard freeze -o {path.name}")
