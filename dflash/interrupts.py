"""Ctrl-C and SIGTERM before the first step of a training; the loop has its own way, see ``train.py``.

In: signals. Out: an exception, or, where one could not be trusted to arrive, the end of the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from dflash.console import say
from dflash.errors import Interrupted
from envguard.errors import INTERRUPTED


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which schedulers and containers send, ends a run as Ctrl-C does: recorded, exit 130."""

    def on_signal(number: int, _frame: object) -> None:
        raise _before_first_step(number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ending_at_once(record: Callable[[Interrupted], object] = lambda _: None) -> Iterator[None]:
    """While packages are imported in the block, both end the process at once, after ``record``: exit 130.

    Packages swallow a ``KeyboardInterrupt``, make an ``ImportError`` of it, or abort where it passes through their C++
    (torch 2.11, transformers 5.6 and accelerate were seen to). A signal that this process ignores stays ignored.
    """

    def on_signal(number: int, _frame: object) -> None:
        record(_before_first_step(number))
        say("interrupted")
        os._exit(INTERRUPTED)

    heeded = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, on_signal) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _before_first_step(number: int) -> Interrupted:
    return Interrupted(f"{signal.Signals(number).name} before the first step; start again, or --resume")
