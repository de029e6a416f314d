"""``envguard check`` and ``doctor``. In: options. Out: the report on stdout or in a file, and its exit code.

Both judge the same way; ``check`` begins at the standard tier and ``doctor`` at the fast one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envguard.cliutil import say, write_out
from envguard.errors import UsageError
from envguard.report import NAMES

if TYPE_CHECKING:
    from envguard.findings import Tier


def add_arguments(parser: argparse.ArgumentParser, *, tier: Tier) -> None:
    """The grammar; ``tier`` is the command's own."""
    parser.add_argument("--project", type=Path, metavar="DIR", help="the project (default: upwards from here)")
    parser.add_argument("--profile", default="auto", help="a profile of envguard.toml (default: %(default)s)")
    parser.add_argument("--format", choices=NAMES, default="text", help="(default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the report here instead of stdout")
    chosen = "an id or a family such as PKG; may be repeated"
    parser.add_argument("--select", nargs="+", action="extend", default=[], metavar="ID", help=f"only these: {chosen}")
    parser.add_argument("--ignore", nargs="+", action="extend", default=[], metavar="ID", help=f"not these: {chosen}")
    parser.add_argument("--strict", action="store_true", help="warnings count: exit 1")
    parser.add_argument("--base", metavar="REV", help="revision, lock or directory that the lock is compared with")
    tiers = parser.add_mutually_exclusive_group()
    for name, does in (
        ("fast", "list and read small files only"),
        ("deep", "also hash every installed file"),
        ("gpu", "also start torch on the GPU"),
    ):
        tiers.add_argument(f"--{name}", dest="tier", action="store_const", const=name, default=tier, help=does)


def run(options: argparse.Namespace) -> int:
    """Judge, render, write."""
    from envguard.guard import check_project
    from envguard.progress import ByteBar
    from envguard.report import FORMATS

    with ByteBar("hashing") as bar:
        report = check_project(
            options.project,
            options.profile,
            options.python,
            tier=options.tier,
            select=options.select,
            ignore=options.ignore,
            strict=options.strict,
            base=options.base,
            progress=bar,
        )
    write_report(FORMATS["json" if options.json else options.format](report), options.output)
    return report.exit_code


def write_report(text: str, output: Path | None) -> None:
    """Write to stdout, or to ``output``.

    Raises:
        UsageError: the file cannot be written.
    """
    from envguard.atomic import write_text

    if output is None:
        write_out(text)
        return
    try:
        write_text(output, text)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written ({error.strerror})") from error
    say(f"wrote {output}")
