"""``envguard diff A B``. In: two paths. Out: the comparison on stdout; exit 1 where something differs."""

from __future__ import annotations

import argparse
from pathlib import Path

from envguard.cliutil import write_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The grammar."""
    what = "an env.json, uv.lock, pylock.toml, venv or its python, run directory, or project directory"
    parser.add_argument("left", type=Path, metavar="A", help=what)
    parser.add_argument("right", type=Path, metavar="B", help="the same")
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="(default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Compare and print; 0 same, 1 different."""
    from envguard.diff import diff_paths
    from envguard.report.difference import DIFFERENCE_FORMATS

    difference = diff_paths(options.left, options.right)
    write_out(DIFFERENCE_FORMATS["json" if options.json else options.format](difference))
    return difference.exit_code
