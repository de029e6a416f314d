"""A report on a terminal, in colour; as plain text everywhere else.

In: an ``envguard`` report. Out: text on stdout. Colours are left out where ``NO_COLOR`` is set or stdout is no
terminal, and where rich, which is one of the packages that drift, cannot be imported or fails: the report has to be
readable in exactly that environment.
"""

from __future__ import annotations

import os
import sys

from envguard.cliutil import write_out
from envguard.findings import Status
from envguard.report import FORMATS, Report
from envguard.report.text import groups, remark, verdict

STYLES: dict[Status, str] = {
    "error": "bold magenta",
    "fail": "bold red",
    "warn": "yellow",
    "waived": "cyan",
    "skip": "dim",
}


def show(report: Report) -> None:
    """Print ``report``."""
    text = _in_colour(report) if wants_colour() else None
    write_out(FORMATS["text"](report) if text is None else text)


def wants_colour() -> bool:
    """Whether stdout is a terminal that shows colours and nobody asked for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _in_colour(report: Report) -> str | None:
    """The report with escape sequences; None where rich cannot make it."""
    try:
        from rich.console import Console
        from rich.text import Text

        console = Console(force_terminal=True, soft_wrap=True)
        with console.capture() as capture:
            for line in _lines(report):
                console.print(Text.assemble(*line))
        return capture.get()
    except Exception:  # a half-deleted or edited rich can raise anything, and the plain text says that it is
        return None


def _lines(report: Report) -> list[list[tuple[str, str]]]:
    """The lines of the text report, each as (text, style) pieces."""
    lines: list[list[tuple[str, str]]] = [[(f"{report.judged}; profile {report.profile}", "dim")], []]
    for family, findings in groups(report):
        lines.append([(report.titles[family], "bold")])
        for each in findings:
            style = STYLES[each.status]
            lines.append([(f"  {each.status:<6}", style), (f" {each.id}  ", "bold"), (each.message, "")])
            lines.append([(f"                  {remark(each)}", "dim")])
        lines.append([])
    lines += [[(f"skip     {each.id}  {each.message}", STYLES["skip"])] for each in report.skipped]
    worst = {"pass": "bold green", "warn": "bold yellow", "fail": "bold red", "error": "bold magenta"}[report.status]
    lines.append([(verdict(report), worst)])
    if report.repair:
        lines += [[], [("Repair:", "bold")], [(f"  {report.repair}", "")]]
    return lines
