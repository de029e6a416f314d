"""The command line of ``envguard``: argparse, so that it runs where typer or rich have drifted.

In: arguments. Out: data on stdout, talk on stderr, an exit code from ``docs/exit-codes.md``. It only parses, calls
and prints; the judgement is ``guard.check_project``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from envguard.cliutil import run, say, write_out
from envguard.commands import catalogue, check, diff, init, sync
from envguard.errors import OK, UsageError

EXIT_CODES = "Exit codes: 0 fine, 1 findings, 2 usage or policy error, 3 a check crashed or could not run."


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are our errors."""

    def _get_formatter(self) -> argparse.HelpFormatter:
        # argparse makes one for each argument, and without a width each start pays for importing shutil's archivers.
        return argparse.HelpFormatter(self.prog, width=_terminal_width() - 2)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _terminal_width() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:  # stdout is no terminal
        return 80


def console() -> NoReturn:
    """The console script: ``main``, and out at once.

    (Everything has been flushed then; to take the interpreter down object by object costs a tenth of a fast start.)
    """
    os._exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run("envguard", _command, arguments)


def _command(arguments: list[str]) -> int:
    options = build_parser(arguments[0] if arguments else None).parse_args(arguments)
    match options.command:
        case "check" | "doctor":
            return check.run(options)
        case "explain":
            return catalogue.run_explain(options)
        case "list":
            return catalogue.run_list(options)
        case "freeze":
            return _freeze(options)
        case "diff":
            return diff.run(options)
        case "init":
            return init.run(options)
        case "sync":
            return sync.run(options)
    raise AssertionError(f"the parser let {options.command!r} through")


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The grammar of the command line; of ``command`` only, where it is the name of one.

    (argparse takes longer to make the grammar of all commands than to parse one.)
    """
    parser = _Parser(
        prog="envguard", description="What is installed, what should be, and the repair.", epilog=EXIT_CODES
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="envguard")
    for name in [command] if command in GRAMMAR else GRAMMAR:
        does, add_arguments = GRAMMAR[name]
        each = commands.add_parser(name, help=does)
        add_arguments(each)
        each.add_argument("--json", action="store_true", help="JSON on stdout")
        each.add_argument("--debug", action="store_true", help="a traceback with every error")
    return parser


def _add_python(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="judge this interpreter or venv (default: own; of a tool, the project's)",
    )


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    check.add_arguments(parser, tier="standard")
    _add_python(parser)


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    check.add_arguments(parser, tier="fast")
    _add_python(parser)


def _add_freeze_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", type=Path, metavar="DIR", help="whose code is recorded (default: upwards)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write here instead of stdout")
    _add_python(parser)


GRAMMAR: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "check": ("judge the environment and the lock (asks uv whether the lock is stale)", _add_check_arguments),
    "doctor": ("judge the environment only, quickly", _add_doctor_arguments),
    "explain": ("what a check asserts, why, and how to repair it", catalogue.add_explain_arguments),
    "list": ("every check in one line", catalogue.add_list_arguments),
    "freeze": ("the observed environment as JSON, with its env_id", _add_freeze_arguments),
    "diff": ("what differs between two environments, locks or runs", diff.add_arguments),
    "sync": ("the uv commands that repair the environment; --apply runs them", sync.add_arguments),
    "init": ("a first envguard.toml for the project at hand", init.add_arguments),
}
"""Name → what the command does, and what it takes."""


def _freeze(options: argparse.Namespace) -> int:
    from envguard.atomic import write_text
    from envguard.guard import freeze

    text = json.dumps(freeze(options.python, options.project), indent=2) + "\n"
    if options.output is None:
        write_out(text)
        return OK
    try:
        write_text(options.output, text)
    except OSError as error:
        raise UsageError(f"--output {options.output}: cannot be written ({error.strerror})") from error
    say(f"wrote {options.output}")
    return OK
