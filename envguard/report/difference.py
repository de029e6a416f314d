"""A comparison rendered as text, JSON (schema 1) or markdown. In: a ``Difference``. Out: text with a final newline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from envguard.diff import GROUPS, Change, Difference
from envguard.frozen import as_dict

SCHEMA = 1


def render_text(difference: Difference) -> str:
    """For a person: groups, the first side before the arrow."""
    lines = [f"{difference.left.name} -> {difference.right.name}"]
    for title, changes in _groups(difference):
        lines += ["", title]
        lines += [
            f"  {change.subject}: {_or_nothing(change.before)} -> {_or_nothing(change.after)}" for change in changes
        ]
    lines += ["", _verdict(difference)]
    lines += [f"not compared: {each}" for each in difference.not_compared]
    return "\n".join(lines) + "\n"


def render_markdown(difference: Difference) -> str:
    """For an issue: one table a group."""
    lines = [f"### {_cell(difference.left.name)} → {_cell(difference.right.name)}", "", _verdict(difference)]
    for title, changes in _groups(difference):
        lines += ["", f"**{title}**", "", "| what | before | after |", "|---|---|---|"]
        for change in changes:
            cells = (change.subject, _or_nothing(change.before), _or_nothing(change.after))
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    if difference.not_compared:
        lines += ["", *(f"- not compared: {_cell(each)}" for each in difference.not_compared)]
    return "\n".join(lines) + "\n"


def render_json(difference: Difference) -> str:
    """The document, schema 1."""
    document = {
        "schema": SCHEMA,
        "exit_code": difference.exit_code,
        "left": {"name": difference.left.name, "kind": difference.left.kind},
        "right": {"name": difference.right.name, "kind": difference.right.kind},
        "changes": [as_dict(change) for change in difference.changes],
        "not_compared": list(difference.not_compared),
    }
    return json.dumps(document, indent=2) + "\n"


DIFFERENCE_FORMATS: dict[str, Callable[[Difference], str]] = {
    "text": render_text,
    "json": render_json,
    "markdown": render_markdown,
}


def _groups(difference: Difference) -> Iterator[tuple[str, list[Change]]]:
    for group, title in GROUPS.items():
        if changes := [change for change in difference.changes if change.group == group]:
            yield title, changes


def _verdict(difference: Difference) -> str:
    count = len(difference.changes)
    if not count:
        return "same: nothing that both sides know differs"
    return f"{count} difference{'s' if count > 1 else ''}"


def _or_nothing(value: str | None) -> str:
    return "(none)" if value is None else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
