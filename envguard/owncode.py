"""The project's own code as the section ``code`` of an ``env.json``: what it was, and which commit held it.

In: the project's directory and the paths that its policy names as ``source``. Out: a JSON-able dictionary with the
digest of each file, one digest over all of them, the commit, and what differs from it. It is no part of ``env_id``:
code changes with every commit while the environment stays what it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envguard.atomic import sha256_bytes
from envguard.probes.source import read_source

GIT_TIMEOUT = 20.0


def describe_code(root: Path, entries: Sequence[str]) -> dict[str, Any]:
    """The section; ``commit`` and ``uncommitted`` are None where git cannot tell.

    Raises:
        ProbeError: a file cannot be read.
    """
    source = read_source(root, entries)
    files = dict(sorted(source.files.items()))
    lines = "".join(f"{digest}  {path}\n" for path, digest in files.items())
    return {
        "digest": sha256_bytes(lines.encode()),
        "files": files,
        "commit": None if source.uncommitted is None else _commit(root),
        "uncommitted": None if source.uncommitted is None else sorted(source.uncommitted),
    }


def _commit(root: Path) -> str | None:
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):  # git has just told of the files; without an answer there is no commit
        return None
    return done.stdout.strip() or None
