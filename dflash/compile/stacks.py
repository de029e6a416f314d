"""What every thread is doing at this moment: the functions it is in.

Out: plain names, no frame objects, so nothing is kept alive. On Python 3.11 a frame object is made the moment somebody
asks for it, and a garbage collection can begin within: whatever Python code that runs (a callback, a finalizer) gives
other threads a turn, the frame that is asked for may end, and what is read of it is other memory: an answer of a wrong
type, or a segmentation fault (``PyFrame_GetBack`` and ``_PyFrame_MakeAndSetFrameObject`` of CPython; from 3.12
collections wait for the end of an instruction). So none begins while stacks are read: their threshold is 0 meanwhile,
which ``gc.disable`` and ``gc.enable`` of other threads do not touch.
"""

from __future__ import annotations

import gc
import os
import sys
from types import FrameType
from typing import NamedTuple

from dflash.compile.locks import Lock

_reading = Lock()
_thresholds: tuple[int, int, int] | None = None
"""Those to put back, while stacks are read: also in a child that is forked meanwhile."""


class Call(NamedTuple):
    """One function that a thread is in, and the line that it has reached."""

    file: str
    line: int
    name: str


def read_stacks() -> dict[int, tuple[Call, ...]]:
    """The calls of each thread, innermost first, by the thread's identifier."""
    global _thresholds
    with _reading.held():
        before = gc.get_threshold()  # 0 in a signal handler that interrupts another reading
        try:
            _thresholds = before if before[0] else _thresholds
            gc.set_threshold(0)
            return {ident: _calls(frame) for ident, frame in sys._current_frames().items()}
        finally:
            gc.set_threshold(*before)
            _thresholds = None if before[0] else _thresholds


def _calls(innermost: FrameType) -> tuple[Call, ...]:
    calls: list[Call] = []
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        calls.append(Call(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(calls)


def _after_fork() -> None:
    if _thresholds is not None:
        gc.set_threshold(*_thresholds)


os.register_at_fork(after_in_child=_after_fork)
