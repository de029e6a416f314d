"""No endless hang: what takes too long is reported with the stack of every thread, then ends the process.

In: what is being done, and a time. Out: nothing, or an ended process. A deadlock cannot be broken from inside (its
threads wait in C), so a stall ends the run; ``on_stall`` records why before that. A thread of our own watches; where a
hang holds the interpreter's lock too, ``faulthandler`` writes the stacks from C ten seconds later and exits: it has one
clock for the process, which is set for whichever watch is due first.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import reprlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from dflash.compile.locks import Lock
from dflash.compile.stacks import read_stacks
from dflash.errors import ConfigError
from envguard.errors import FINDINGS

LONGEST = 1e7
GRACE = 10.0  # seconds for our own thread before faulthandler ends the process
SOON = 0.001  # seconds; faulthandler takes no 0
TELLING = 5.0  # seconds for stderr, which may be a pipe that nobody reads

_clock = Lock()
"""Held while faulthandler's clock is set."""
_watches: list[_Watch] = []
"""Those going on."""
_nowhere: list[IO[str]] = []
"""What faulthandler writes to where stderr is closed; open for as long as the process."""


def end_process(message: str, stacks: str) -> None:
    """What a stall does unless told otherwise: everything on stderr, exit 1."""
    telling = threading.Thread(target=_tell, args=(f"{stacks}\nerror: {message}",), daemon=True)
    telling.start()
    telling.join(TELLING)
    os._exit(FINDINGS)


def _tell(text: str) -> None:
    for stream in (sys.stderr, sys.__stderr__):  # the first may be anything that has a method write, the second closed
        if stream is not None:  # print would take stdout instead
            with contextlib.suppress(Exception):
                encoding = getattr(stream, "encoding", None) or "ascii"
                print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
                return


@contextmanager
def watch_stall(
    what: str, seconds: float, on_stall: Callable[[str, str], None] = end_process
) -> Iterator[Callable[[], None]]:
    """Call ``on_stall(message, stacks)`` once if ``seconds`` pass without an end or a beat; yields the beat.

    Where ``on_stall`` returns or hangs, the process ends ``GRACE`` seconds later, unless an end or a beat comes; where
    it raises, at once, as without one. Several may go on at once, in one thread or in many. A beat after the end does
    nothing.

    Raises:
        ConfigError: ``seconds`` is no time that a clock can wait, or ``on_stall`` cannot be called.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST:
        raise ConfigError(
            f"watch_stall: got {reprlib.repr(seconds)} seconds, allowed is more than 0 and at most {LONGEST:g}"
        )
    if not callable(on_stall):
        raise ConfigError(f"watch_stall: got on_stall={reprlib.repr(on_stall)}, allowed is something to call")
    watch = _Watch(what, seconds, on_stall)
    thread = threading.Thread(target=watch.run, name="stall-watch", daemon=True)
    try:
        with _clock.held():
            _watches.append(watch)
            _set_clock()
        thread.start()
        yield watch.beat
    finally:
        try:  # first, so that faulthandler ends an on_stall that never returns
            watch.done.set()
            with contextlib.suppress(RuntimeError):  # it was not started
                thread.join()
        finally:
            with _clock.held():
                if watch in _watches:
                    _watches.remove(watch)
                _set_clock()


def thread_stacks() -> str:
    """The stacks of all threads but the calling one, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, calls in read_stacks().items():
        if ident != threading.get_ident():
            lines = traceback.format_list([(call.file, call.line, call.name, None) for call in reversed(calls)])
            parts.append(f"thread {names.get(ident, ident)}:\n{''.join(lines)}")
    return "\n".join(parts)


_forked_meanwhile = False
"""The clock was running when this process was forked: touched in the child it waits for a thread that is not there."""


def _after_fork() -> None:
    global _forked_meanwhile
    _forked_meanwhile = _forked_meanwhile or bool(_watches)
    _watches.clear()  # a child has none of their threads


os.register_at_fork(after_in_child=_after_fork)


def _set_clock() -> None:
    """For the watch that is due first; none, and it stands still."""
    if _forked_meanwhile:  # our own threads remain
        return
    if not _watches:
        faulthandler.cancel_dump_traceback_later()
        return
    due = min(watch.last + watch.seconds for watch in _watches) + GRACE - time.monotonic()
    due = max(SOON, due)  # a watch that is overdue stays so, whatever the others do
    try:
        faulthandler.dump_traceback_later(due, exit=True, file=sys.__stderr__ or _null())
    except (OSError, ValueError):  # closed: to no place, but it ends
        faulthandler.dump_traceback_later(due, exit=True, file=_null())


def _null() -> IO[str]:
    if not _nowhere:
        _nowhere.append(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    return _nowhere[0]


class _Watch:
    def __init__(self, what: str, seconds: float, on_stall: Callable[[str, str], None]) -> None:
        self.what = what
        self.seconds = seconds
        self.on_stall = on_stall
        self.done = threading.Event()
        self.last = time.monotonic()

    def beat(self) -> None:
        with _clock.held():
            self.last = time.monotonic()
            if self in _watches:
                _set_clock()

    def run(self) -> None:
        while not self.done.wait(max(0.0, self.last + self.seconds - time.monotonic())):
            if time.monotonic() - self.last >= self.seconds:
                message, stacks = self._message(), thread_stacks()
                try:
                    self.on_stall(message, stacks)
                except Exception:  # a report that fails must not hide what it was to report
                    _tell(traceback.format_exc())
                    end_process(message, stacks)
                return

    def _message(self) -> str:
        return (
            f"{self.what}: no progress for {self.seconds:g} s; see the stacks of all threads (a run: in log.txt)"
            f". A thread that waits for torch's compile_lock or in _engine_run_backward is a deadlock: apply "
            f"dflash.compile.policy in every thread, or run one process a GPU; a slow machine needs more time "
            f"(stall_seconds; of a run: compile.stall_seconds)"
        )
