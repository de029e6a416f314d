"""No endless hang: what takes too long is reported with the stack of every thread, then ends the process.

In: what is being done, and a time. Out: nothing, or an ended process. A deadlock cannot be broken from inside (its
threads wait in C), so a stall ends the run; ``on_stall`` records why before that. A thread of our own watches; where a
hang holds the interpreter's lock too, ``faulthandler`` writes the stacks from C ten seconds later and exits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dflash.errors import ConfigError
from envguard.errors import FINDINGS

LONGEST = 1e7
GRACE = 10.0  # seconds for our own thread before faulthandler ends the process


def end_process(message: str, stacks: str) -> None:
    """What a stall does unless told otherwise: everything on stderr, exit 1."""
    if sys.stderr is not None:  # print would take stdout instead
        with contextlib.suppress(OSError, ValueError):  # closed
            print(f"{stacks}\nerror: {message}", file=sys.stderr, flush=True)
    os._exit(FINDINGS)


@contextmanager
def watch_stall(
    what: str, seconds: float, on_stall: Callable[[str, str], None] = end_process
) -> Iterator[Callable[[], None]]:
    """Call ``on_stall(message, stacks)`` once if ``seconds`` pass without an end or a beat; yields the beat.

    One at a time in a process: ``faulthandler``'s clock is shared.

    Raises:
        ConfigError: ``seconds`` is no time that a clock can wait.
    """
    if not 0 < seconds <= LONGEST:
        raise ConfigError(f"watch_stall: got {seconds:g} seconds, allowed is more than 0 and at most {LONGEST:g}")
    watch = _Watch(what, seconds, on_stall)
    watch.beat()
    thread = threading.Thread(target=watch.run, name="stall-watch", daemon=True)
    thread.start()
    try:
        yield watch.beat
    finally:
        watch.done.set()
        faulthandler.cancel_dump_traceback_later()
        thread.join()


def thread_stacks() -> str:
    """The stacks of all threads but the calling one, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            parts.append(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


class _Watch:
    def __init__(self, what: str, seconds: float, on_stall: Callable[[str, str], None]) -> None:
        self.what = what
        self.seconds = seconds
        self.on_stall = on_stall
        self.done = threading.Event()
        self.last = time.monotonic()

    def beat(self) -> None:
        self.last = time.monotonic()
        stderr = sys.__stderr__
        if stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # closed: our own thread still ends the process
                faulthandler.dump_traceback_later(self.seconds + GRACE, exit=True, file=stderr)

    def run(self) -> None:
        while not self.done.wait(max(0.0, self.last + self.seconds - time.monotonic())):
            if time.monotonic() - self.last >= self.seconds:
                self.on_stall(self._message(), thread_stacks())
                return

    def _message(self) -> str:
        return (
            f"{self.what}: no progress for {self.seconds:g} s; see the stacks of all threads (a run: in log.txt)"
            f". A thread that waits for torch's compile_lock or in _engine_run_backward is a deadlock: apply "
            f"dflash.compile.policy in every thread, or run one process a GPU; a slow machine needs more time "
            f"(stall_seconds; of a run: compile.stall_seconds)"
        )
