"""``envguard sync``. In: a profile. Out: uv commands on stdout; with ``--apply`` they run, and a judgement follows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from envguard.cliutil import say, write_out
from envguard.errors import OK

if TYPE_CHECKING:
    from envguard.sync import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The grammar."""
    parser.add_argument("--project", type=Path, metavar="DIR", help="the project (default: upwards from here)")
    parser.add_argument("--profile", default="auto", help="a profile of envguard.toml (default: %(default)s)")
    parser.add_argument("--python", metavar="VERSION", help="the Python that the environment shall have")
    parser.add_argument("--apply", action="store_true", help="run the commands instead of printing them, then judge")


def run(options: argparse.Namespace) -> int:
    """Print the commands (0), or run them and report; 0 also where there is nothing to do."""
    from envguard.report import FORMATS
    from envguard.sync import apply, plan_sync

    plan = plan_sync(options.project, options.profile, options.python)
    if not options.apply:
        write_out(_as_json(plan) if options.json else "".join(f"{step}\n" for step in plan.steps))
        if not plan.steps:
            say(_nothing(plan))
        return OK
    if not plan.steps:
        say(_nothing(plan))
    report = apply(plan, say)
    write_out(FORMATS["json" if options.json else "text"](report))
    return report.exit_code


def _nothing(plan: Plan) -> str:
    left = len(plan.report.findings) if plan.report else 0
    if left:
        return f"nothing that uv could do; {left} findings are left for a person: run envguard check"
    return f"nothing to do: {plan.venv} is what profile {plan.profile} says"


def _as_json(plan: Plan) -> str:
    commands = [{"argv": list(step.argv), "environ": dict(step.environ), "shell": str(step)} for step in plan.steps]
    document = {
        "schema": 1,
        "project": str(plan.project),
        "profile": plan.profile,
        "venv": str(plan.venv),
        "commands": commands,
    }
    return json.dumps(document, indent=2) + "\n"
