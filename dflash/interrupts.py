"""Ctrl-C and SIGTERM before the first step of a training; the loop has its own way, see ``train.py``.

In: signals. Out: an exception, or, where one could not be trusted to arrive, the end of the process. A signal that this
process ignores stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from dflash.console import on_terminal, say
from envguard.errors import INTERRUPTED

_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # a bar on a terminal hides it


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which schedulers and containers send, ends a run as Ctrl-C does: recorded, exit 130."""

    def on_signal(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(_before_first_step(number))

    with handling(on_signal, signal.SIGTERM):
        yield


@contextlib.contextmanager
def ending_at_once(record: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """While packages are imported or graphs compiled in the block, both end the process, after ``record``: exit 130.

    Packages swallow a ``KeyboardInterrupt``, make an ``ImportError`` of it, or abort where it passes through their C++
    (torch 2.11, transformers 5.6 and accelerate were seen to). Inductor takes whatever is raised in it for a failed
    compile, which may be made up for by another: the run would go on. What such an end leaves is what a kill leaves.
    """

    def on_signal(number: int, _frame: object) -> None:
        try:
            record(_before_first_step(number))
            if on_terminal():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            say("interrupted")
        finally:  # whatever a write in a signal handler may meet, such as the very write that it came upon
            os._exit(INTERRUPTED)

    with handling(on_signal, signal.SIGINT, signal.SIGTERM):
        yield


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """``handler`` for those of the signals that this process does not ignore, in the block."""
    heeded = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _before_first_step(number: int) -> str:
    return f"{signal.Signals(number).name} before the first step; start again, or --resume"
