"""``dflash doctor``: parse, call ``dflash.doctor``, print.

In: arguments. Out: the report on stdout and an exit code. It has to work where typer has drifted, so it is argparse
and ``entry.py`` calls ``run_doctor`` before anything imports typer (which also makes it twice as fast). ``doctor``
is what the typer application lists in its help.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from envguard.cliutil import write_out
from envguard.errors import UsageError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def run_doctor(arguments: Sequence[str]) -> int:
    """Parse ``arguments``, print the report, return the exit code.

    Raises:
        UsageError: an argument is wrong, or the project or its policy is not there.
        CheckCrashed: the environment cannot be judged at all.
    """
    options = build_parser().parse_args(list(arguments))

    from dflash.cli.show import show
    from dflash.doctor import examine
    from envguard.report import FORMATS

    report = examine(options.project, options.profile)
    if options.json:
        write_out(FORMATS["json"](report))
    else:
        show(report)
    return report.exit_code


def build_parser() -> argparse.ArgumentParser:
    """The grammar of the command."""
    parser = _Parser(
        prog="dflash doctor",
        description="Judge this environment and machine, and name the command that repairs them.",
        epilog="Exit codes: 0 fine, 1 findings, 2 usage or policy error, 3 a check crashed or could not run.",
    )
    parser.add_argument("--project", type=Path, metavar="DIR", help="the project (default: upwards from here)")
    parser.add_argument("--profile", default="auto", help="a profile of envguard.toml (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, schema 1")
    parser.add_argument("--debug", action="store_true", help="a traceback with every error")
    return parser


def doctor() -> int:
    """Judge this environment and machine; name the repair."""
    return run_doctor([])
