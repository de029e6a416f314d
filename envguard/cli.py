"""``envguard check|doctor|explain|list|freeze|diff|sync``: argparse, so that it runs where typer or rich have drifted.

In: arguments. Out: data on stdout, talk on stderr, an exit code from ``docs/exit-codes.md``. It only parses, calls
and prints; the judgement is ``guard.check_project``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from envguard.cliutil import run, say, write_out
from envguard.commands import diff, sync
from envguard.errors import OK, UsageError

EXIT_CODES = "Exit codes: 0 fine, 1 findings, 2 usage or policy error, 3 a check crashed or could not run."


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are our errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    return run("envguard", _command, arguments)


def _command(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    match options.command:
        case "check" | "doctor":
            return _check(options)
        case "explain":
            return _explain(options)
        case "list":
            return _list(options)
        case "freeze":
            return _freeze(options)
        case "diff":
            return diff.run(options)
        case "sync":
            return sync.run(options)
    raise AssertionError(f"the parser let {options.command!r} through")


def build_parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    parser = _Parser(
        prog="envguard", description="What is installed, what should be, and the repair.", epilog=EXIT_CODES
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="envguard")
    check = commands.add_parser("check", help="judge the environment and the lock (asks uv whether the lock is stale)")
    doctor = commands.add_parser("doctor", help="judge the environment only, quickly")
    for command in (check, doctor):
        command.add_argument("--project", type=Path, metavar="DIR", help="the project (default: upwards from here)")
        command.add_argument("--profile", default="auto", help="a profile of envguard.toml (default: %(default)s)")
        command.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    explain = commands.add_parser("explain", help="what a check asserts, why, and how to repair it")
    explain.add_argument("id", metavar="ID", help="such as PKG003")
    listing = commands.add_parser("list", help="every check in one line")
    freeze = commands.add_parser("freeze", help="the observed environment as JSON, with its env_id")
    freeze.add_argument("-o", "--output", type=Path, metavar="FILE", help="write here instead of stdout")
    check.add_argument("--base", metavar="REV", help="revision, lock or directory that the lock is compared with")
    doctor.set_defaults(base=None)
    difference = commands.add_parser("diff", help="what differs between two environments, locks or runs")
    diff.add_arguments(difference)
    syncing = commands.add_parser("sync", help="the uv commands that repair the environment; --apply runs them")
    sync.add_arguments(syncing)
    for command in (check, doctor, freeze):
        command.add_argument(
            "--python", type=Path, metavar="PATH", help="judge this interpreter or venv (default: own)"
        )
    for command in (check, doctor, explain, listing, freeze, difference, syncing):
        command.add_argument("--json", action="store_true", help="JSON on stdout")
        command.add_argument("--debug", action="store_true", help="a traceback with every error")
    return parser


def _check(options: argparse.Namespace) -> int:
    from envguard.findings import Tier
    from envguard.guard import check_project
    from envguard.report import FORMATS

    tier: Tier = "standard" if options.command == "check" else "fast"
    report = check_project(options.project, options.profile, options.python, tier=tier, base=options.base)
    write_out(FORMATS["json" if options.json else options.format](report))
    return report.exit_code


def _explain(options: argparse.Namespace) -> int:
    from envguard.registry import find_check

    check = find_check(options.id)
    record = {"id": check.id, "summary": check.summary, "why": check.why, "fix": check.fix}
    if options.json:
        write_out(json.dumps({"schema": 1, **record}, indent=2) + "\n")
    else:
        write_out(f"{check.id}: {check.summary}.\n\nWhy: {check.why}\nFix: {check.fix}\n")
    return OK


def _list(options: argparse.Namespace) -> int:
    from envguard.registry import CHECKS

    if options.json:
        rows = [
            {"id": each.id, "severity": each.severity, "tier": each.tier, "summary": each.summary} for each in CHECKS
        ]
        write_out(json.dumps({"schema": 1, "checks": rows}, indent=2) + "\n")
    else:
        write_out("".join(f"{each.id}  {each.severity:<4}  {each.tier:<8}  {each.summary}\n" for each in CHECKS))
    return OK


def _freeze(options: argparse.Namespace) -> int:
    from envguard.atomic import write_text
    from envguard.guard import freeze

    text = json.dumps(freeze(options.python), indent=2) + "\n"
    if options.output is None:
        write_out(text)
        return OK
    try:
        write_text(options.output, text)
    except OSError as error:
        raise UsageError(f"--output {options.output}: cannot be written ({error.strerror})") from error
    say(f"wrote {options.output}")
    return OK
