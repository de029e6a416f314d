"""Ctrl-C, SIGTERM and SIGHUP: before the first step of a training, and in its loop.

In: signals. Out: an exception, or, where one could not be trusted to arrive, the end of the process; in the loop, word
that it is to save and stop. A signal that this process ignores stays ignored.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from dflash.console import leave_terminal, say
from envguard.errors import INTERRUPTED

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler or container that wants an end, a connection that is gone."""


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: recorded, exit 130."""

    def on_signal(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(_before_training(number))

    with handling(on_signal, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def ending_at_once(record: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """While packages are imported or graphs compiled in the block, each ends the process, after ``record``: exit 130.

    Packages swallow a ``KeyboardInterrupt``, make an ``ImportError`` of it, or abort where it passes through their C++
    (torch 2.11, transformers 5.6 and accelerate were seen to). Inductor takes whatever is raised in it for a failed
    compile, which may be made up for by another: the run would go on. What such an end leaves is what a kill leaves.
    """

    def on_signal(number: int, _frame: object) -> None:
        end_at_once(record, _before_training(number))

    with handling(on_signal, *ENDING):
        yield


def end_at_once(record: Callable[[str], object], reason: str) -> NoReturn:
    """From a signal handler: record, say so, leave the terminal in order, exit 130."""
    try:
        record(reason)
        say("interrupted")
        leave_terminal()
    finally:  # whatever a write in a signal handler may meet, such as the very write that it came upon
        os._exit(INTERRUPTED)


ONE_PRESS = 0.5
"""Seconds in which a second signal is the first again."""


@contextlib.contextmanager
def stop_signals(record: Callable[[str], object]) -> Iterator[Callable[[], bool]]:
    """The first signal asks the loop to save and stop after the step at hand; the second, recorded, ends the process.

    A second one within ``ONE_PRESS`` is the first again: a launcher forwards what the process group got as well.
    """
    asked = -math.inf

    def on_signal(number: int, _frame: object) -> None:
        nonlocal asked
        now = time.monotonic()
        if now - asked < ONE_PRESS:
            return
        name = signal.Signals(number).name
        if asked > 0:
            end_at_once(record, f"{name} once more: nothing saved; --resume goes on from the last checkpoint")
        asked = now
        say(f"{name}: saving after this step; once more to stop at once")

    with handling(on_signal, *ENDING):
        yield lambda: asked > 0


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


def _before_training(number: int) -> str:
    return f"{signal.Signals(number).name} before training began; start again with --resume"
