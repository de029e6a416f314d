"""``envguard init``. In: a project directory. Out: a first ``envguard.toml`` in it; an existing one stays."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from envguard.cliutil import say, write_out
from envguard.errors import OK, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The grammar."""
    parser.add_argument("--project", type=Path, default=Path(), metavar="DIR", help="(default: the current directory)")


def run(options: argparse.Namespace) -> int:
    """Write the policy and say what to do next."""
    from envguard.starter import write_starter

    if not options.project.is_dir():
        raise UsageError(f"--project {options.project}: no such directory; name one that holds pyproject.toml")
    path, build = write_starter(options.project.resolve())
    pinned = None if build is None else build.version
    if options.json:
        write_out(json.dumps({"schema": 1, "policy": str(path), "torch": pinned}, indent=2) + "\n")
    said = "it pins no build of torch, since none is installed" if pinned is None else f"it pins torch {pinned}"
    say(f"wrote {path}: {said}; look at it, commit it, and run envguard check --python .venv")
    return OK
