"""Talk and progress on stderr: a rich bar on a terminal, one plain line a stage elsewhere. stdout stays for data."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from envguard import cliutil

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("dflash")

QUIET_SECONDS = 30.0  # between lines of a stage where no terminal shows a bar


def say(line: str) -> None:
    """One line of talk: on stderr, and into the run's log where there is one. No reader is no failure."""
    log.info(line)
    cliutil.say(line)


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def leave_terminal() -> None:
    """Before a process ends at once: a bar that it drew on a terminal is wiped out, and the cursor shown again."""
    if on_terminal():
        os.write(sys.stderr.fileno(), b"\r\x1b[K\x1b[?25h")


class _Bar:
    """stderr for a bar: a terminal that goes away takes the bar with it, and not the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            cliutil.discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            cliutil.discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def bar_console() -> Console:
    """Where a bar is drawn."""
    from rich.console import Console

    return Console(file=cast(IO[str], _Bar(sys.stderr)))


@contextlib.contextmanager
def stage(name: str, *, steps: int) -> Iterator[Callable[[], None]]:
    """A piece of work of ``steps`` parts; yields the function that marks one as done.

    On a terminal it is a bar with percentage and time left; elsewhere a line every half minute. It ends with one line
    that tells the seconds it took.
    """
    started = time.monotonic()
    if on_terminal():
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        title = TextColumn("{task.description}", markup=False)  # the name of somebody's graph may look like markup
        columns = title, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        with Progress(*columns, console=bar_console(), transient=True) as progress:
            task = progress.add_task(name, total=steps)
            yield lambda: progress.advance(task)
    else:
        yield _lines(name, steps)
    say(f"{name}: {time.monotonic() - started:.1f} s")


def _lines(name: str, steps: int) -> Callable[[], None]:
    done, told = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, told
        done += 1
        if done < steps and time.monotonic() - told >= QUIET_SECONDS:
            told = time.monotonic()
            say(f"{name}: {done} of {steps}")

    return advance


def quiet_libraries() -> None:
    """Keep transformers' and datasets' own bars and notes off our stderr: ``stage`` shows the progress."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported; the GGUF reader's bar knows no other switch
    import datasets
    import huggingface_hub
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    huggingface_hub.logging.set_verbosity_error()  # each of its five retries prints a line; our error tells the end
