"""A progress bar on stderr, for what takes more than a second.

In: bytes done and bytes in all. Out: one line that is rewritten in place and wiped at the end, on a terminal only; a
log file gets nothing.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

WIDTH = 30
INTERVAL = 0.1
"""Seconds between two drawings."""


class ByteBar:
    """A context; call it with (bytes done, bytes in all)."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._drawn = time.monotonic()
        self._has_line = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_shown or total == 0 or now - self._drawn < INTERVAL:
            return
        self._drawn, self._has_line = now, True
        filled = WIDTH * done // total
        bar = "#" * filled + "." * (WIDTH - filled)
        line = f"\r{self.what} [{bar}] {done / 1e9:.1f} of {total / 1e9:.1f} GB"
        print(line, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> ByteBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_line:
            print("\r" + " " * (len(self.what) + WIDTH + 30) + "\r", end="", file=sys.stderr, flush=True)
