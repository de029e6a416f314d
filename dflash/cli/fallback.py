"""``dflash doctor`` without typer, for the day on which typer itself has drifted.

In: the arguments and why typer cannot be imported. Out: the same report as ``dflash doctor``, with that finding in it.
No other command exists here: they all name the doctor.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from envguard.cliutil import write_out
from envguard.errors import CheckCrashed, UsageError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def run_without_typer(arguments: list[str], problem: str) -> int:
    """Run ``doctor`` and return its exit code.

    Raises:
        CheckCrashed: another command was asked for.
        UsageError: the arguments are wrong.
    """
    if arguments[:1] != ["doctor"]:
        raise CheckCrashed(f"typer, which the command line needs, cannot be imported ({problem}): run dflash doctor")
    parser = _Parser(prog="dflash doctor", description="Judge this environment and machine (typer is out of order).")
    parser.add_argument("--project", type=Path, metavar="DIR")
    parser.add_argument("--profile", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments[1:])

    from dflash.doctor import examine
    from envguard.report import FORMATS

    report = examine(options.project, options.profile, command_line_problem=problem)
    write_out(FORMATS["json" if options.json else "text"](report))
    return report.exit_code
