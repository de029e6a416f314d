"""Reports: the judgement of one environment, and its renderings, one small file each.

In: a ``Report``. Out: text, through ``render`` or ``FORMATS``. A rendering prints nothing and decides nothing. Adding
one is a module with ``render(report) -> str`` and its name here; it is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping

from envguard.report.model import Report
from envguard.report.places import Places

NAMES = ("text", "json", "sarif", "junit", "github", "markdown")


class _Formats(Mapping[str, Callable[[Report], str]]):
    """Name → rendering."""

    def __getitem__(self, name: str) -> Callable[[Report], str]:
        if name not in NAMES:
            raise KeyError(name)
        render: Callable[[Report], str] = importlib.import_module(f"envguard.report.{name}").render
        return render

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


FORMATS: Mapping[str, Callable[[Report], str]] = _Formats()

__all__ = ["FORMATS", "Places", "Report"]
