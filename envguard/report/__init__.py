"""Reports: the judgement of one environment, and its renderings, one small file each.

In: a ``Report``. Out: text, through ``FORMATS``. A rendering prints nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from envguard.report import json, text
from envguard.report.model import Report

FORMATS: dict[str, Callable[[Report], str]] = {"text": text.render, "json": json.render}

__all__ = ["FORMATS", "Report"]
