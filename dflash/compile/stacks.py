"""What every thread is doing at this moment: the functions it is in.

Out: plain names, no frame objects, so nothing is kept alive. On Python 3.11 a frame object is made the moment somebody
asks for it, and a garbage collection can begin within: whatever Python code that runs (a callback, a finalizer) gives
other threads a turn, the frame that is asked for may end, and what is read of it is other memory: an answer of a wrong
type, or a segmentation fault (``PyFrame_GetBack`` and ``_PyFrame_MakeAndSetFrameObject`` of CPython; from 3.12
collections wait for the end of an instruction). So none begins while stacks are read.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import FrameType
from typing import NamedTuple

_reading = threading.RLock()
"""Held while stacks are read, and across a fork, whose child would have no collections; signal handlers may read."""
os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)


class Call(NamedTuple):
    """One function that a thread is in, and the line that it has reached."""

    file: str
    line: int
    name: str


def read_stacks() -> dict[int, tuple[Call, ...]]:
    """The calls of each thread, innermost first, by the thread's identifier."""
    with _reading:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return {ident: _calls(frame) for ident, frame in sys._current_frames().items()}
        finally:
            if collecting:
                gc.enable()


def _calls(innermost: FrameType) -> tuple[Call, ...]:
    calls: list[Call] = []
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        calls.append(Call(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(calls)
