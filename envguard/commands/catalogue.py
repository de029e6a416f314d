"""``envguard list`` and ``explain``: what the registry knows. In: options. Out: text, JSON or Markdown on stdout.

``docs/checks.md`` is the output of ``envguard list --format markdown``; a test holds them equal. Neither command
needs ``packaging`` or a project.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from typing import TYPE_CHECKING

from envguard.cliutil import write_out
from envguard.errors import OK

if TYPE_CHECKING:
    from envguard.findings import Check
    from envguard.inspection import Inspection


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """The grammar of ``list``."""
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="(default: %(default)s)")


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The grammar of ``explain``."""
    parser.add_argument("id", metavar="ID", help="such as PKG003")


def run_list(options: argparse.Namespace) -> int:
    """Every check."""
    form = "json" if options.json else options.format
    write_out({"text": _list_text, "json": _list_json, "markdown": list_markdown}[form]())
    return OK


def run_explain(options: argparse.Namespace) -> int:
    """One check."""
    from envguard.registry import FAMILIES, find_check

    check = find_check(options.id)
    if options.json:
        write_out(json.dumps({"schema": 1, **_record(check)}, indent=2) + "\n")
        return OK
    lines = [f"{check.id}: {check.summary}.", ""]
    lines.append(f"Family:   {FAMILIES[check.id[:3]]}")
    lines.append(f"Severity: {check.severity}")
    lines.append(f"Tier:     {check.tier} ({_RUN_BY[check.tier]})")
    lines += ["", f"Why: {check.why}", f"Fix: {check.fix}"]
    if check.example:
        lines.append(f"Example: {check.example}")
    write_out("\n".join(lines) + "\n")
    return OK


_RUN_BY = {
    "fast": "envguard doctor, envguard check",
    "standard": "envguard check",
    "deep": "envguard check --deep",
    "gpu": "envguard check --gpu",
}


def _record(check: Check[Inspection]) -> dict[str, str]:
    return {
        "id": check.id,
        "summary": check.summary,
        "why": check.why,
        "fix": check.fix,
        "severity": check.severity,
        "tier": check.tier,
        "example": check.example,
    }


def _families() -> list[tuple[str, str, list[Check[Inspection]]]]:
    """(letters, title, checks), in the registry's order of families and by id within."""
    from envguard.registry import CHECKS, FAMILIES

    order = list(FAMILIES)
    ranked = sorted(CHECKS, key=lambda check: (order.index(check.id[:3]), check.id))
    return [(each, FAMILIES[each], list(checks)) for each, checks in groupby(ranked, key=lambda check: check.id[:3])]


def _list_text() -> str:
    lines: list[str] = []
    for letters, title, checks in _families():
        lines.append(f"{letters}  {title}")
        lines += [f"  {each.id}  {each.severity:<4}  {each.tier:<8}  {each.summary}" for each in checks]
    return "\n".join(lines) + "\n"


def _list_json() -> str:
    families = _families()
    rows = [_record(each) for _, _, checks in families for each in checks]
    titles = {letters: title for letters, title, _ in families}
    return json.dumps({"schema": 1, "families": titles, "checks": rows}, indent=2) + "\n"


def list_markdown() -> str:
    """The page ``docs/checks.md``."""
    lines = [
        "# Checks",
        "",
        "Made by `envguard list --format markdown`; do not edit. `envguard explain ID` shows one of them. The tier",
        "says when a check runs: `fast` always, `standard` with `envguard check`, `deep` and `gpu` with the option of",
        "that name.",
        "",
        "| id | severity | tier | asserts that |",
        "|---|---|---|---|",
    ]
    families = _families()
    for _, _, checks in families:
        lines += [f"| [{e.id}](#{e.id.lower()}) | {e.severity} | {e.tier} | {_cell(e.summary)} |" for e in checks]
    for letters, title, checks in families:
        lines += ["", f"## {letters}: {title}"]
        for check in checks:
            lines += ["", f"### {check.id}", "", f"{_cell(check.summary)} ({check.severity}, {check.tier})."]
            lines += ["", f"- Why: {_cell(check.why)}", f"- Fix: {_cell(check.fix)}"]
            if check.example:
                lines.append(f"- Example: `{check.example}`")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
