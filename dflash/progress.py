"""The step line: rates and time left, as text for people and numbers for ``metrics.jsonl``.

In: tokens of each step. Out: one line a logged step on stderr (at most one every two seconds off a terminal), or a rich
bar on a terminal. Rates count the time since the last logged step; compiling is not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dflash.console import bar_console, log, on_terminal
from envguard import cliutil

QUIET_SECONDS = 2.0  # between lines where no terminal shows a bar


class StepLine:
    """Speed since the last logged step, and time left at the mean speed since the start."""

    def __init__(self, *, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.started = self.since = time.monotonic()
        self.tokens = 0

    def count(self, tokens: int) -> None:
        """A step that is not logged."""
        self.tokens += tokens

    def speed(self, done: int, tokens: int) -> dict[str, float]:
        """tokens_per_s (tokens of packed rows, padding left out) and eta_s, after ``done`` steps."""
        now = time.monotonic()
        rate = (self.tokens + tokens) / (now - self.since)
        self.since, self.tokens = now, 0
        left = (now - self.started) / (done - self.first) * (self.last - done)
        return {"tokens_per_s": round(rate, 1), "eta_s": round(left, 1)}

    def text(self, values: dict[str, Any]) -> str:
        """One line."""
        return (
            f"step {values['step']}/{self.last}  loss {values['loss']:.4f}  accepted {values['accepted_length']:.3f}  "
            f"{values['tokens_per_s']:.0f} tok/s  lr {values['lr']:.2e}  grad {values['grad_norm']:.2f}  "
            f"eta {int(values['eta_s']) // 60}:{int(values['eta_s']) % 60:02d}"
        )


@contextmanager
def progress_bar(first: int, last: int) -> Iterator[Callable[[int, str], None]]:
    """Yields ``advance(done, text)``."""
    if on_terminal():
        from rich.progress import BarColumn, Progress, TextColumn

        columns = BarColumn(bar_width=20), TextColumn("{task.description}")
        with Progress(*columns, console=bar_console()) as progress:
            task = progress.add_task("", total=last, completed=first)

            def show(done: int, text: str) -> None:
                log.info(text)
                progress.update(task, completed=done, description=text)

            yield show
        return
    shown = 0.0

    def print_line(done: int, text: str) -> None:
        nonlocal shown
        log.info(text)
        if done == last or time.monotonic() - shown >= QUIET_SECONDS:
            shown = time.monotonic()
            cliutil.say(text)

    yield print_line
