"""What the commands print: plain aligned text for people, JSON with a schema for programs, progress on a terminal.

In: results of the library. Out: strings, or lines on stdout. It decides nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence

from cache_tools.fingerprint import Comparison, FieldComparison, Verdict
from envguard.cliutil import write_out

SCHEMA = 1
SHORT = 12
"""Digits of an id that people see."""


def out(line: str) -> None:
    """One line of data on stdout; a reader that has gone ends the program quietly."""
    write_out(f"{line}\n")


def shown(path: str) -> str:
    """A path that a stranger may have named, without what would end the line or steer the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in path)


def emit_json(document: Mapping[str, object]) -> None:
    """One JSON document on stdout."""
    out(json.dumps({"schema": SCHEMA, **document}, indent=2))


def human_bytes(count: int) -> str:
    """``353.1 MB``; decimal units, as disks are sold."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return "\n".join(line.rstrip() for line in lines)


def verdict(comparison: Comparison) -> str:
    """``yes``, ``degraded: a, b`` or ``no: a, b``."""
    for word, fields in (("no", comparison.fatal), ("degraded", comparison.degrading)):
        if fields:
            return f"{word}: {', '.join(field.name for field in fields)}"
    return "yes"


def field_line(field: FieldComparison) -> str:
    """One difference in one line."""
    return f"{field.verdict.value}: {field.name} was {field.snapshot!r}, is {field.here!r}: {field.why}"


def autocast_remark(comparison: Comparison) -> str | None:
    """A warning where a cache was made under autocast, and nobody tells what it will be used under."""
    for field in comparison.fields:
        if field.name == "autocast" and field.verdict is Verdict.UNKNOWN and field.snapshot not in (None, "off"):
            return f"made under autocast ({field.snapshot}); use it under no other dtype: {field.why}"
    return None


def field_json(field: FieldComparison) -> dict[str, object]:
    """One difference for programs."""
    return {
        "name": field.name,
        "verdict": field.verdict.value,
        "snapshot": field.snapshot,
        "here": field.here,
        "why": field.why,
    }


class ProgressLine:
    """A line on stderr that is drawn over itself, only on a terminal and only after the first second."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._terminal = sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._terminal or now - self._started < 1 or (now - self._drawn < 0.1 and done < total):
            return
        self._drawn = now
        end = "\n" if done >= total else ""
        print(f"\r{self._doing}: {100 * done // max(total, 1):3d} %", end=end, file=sys.stderr, flush=True)
