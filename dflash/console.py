"""Talk and progress on stderr: a rich bar on a terminal, one plain line a stage elsewhere. stdout stays for data."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator

from envguard import cliutil

log = logging.getLogger("dflash")

QUIET_SECONDS = 30.0  # between lines of a stage where no terminal shows a bar


def say(line: str) -> None:
    """One line of talk: on stderr, and into the run's log where there is one. No reader is no failure."""
    log.info(line)
    cliutil.say(line)


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def stage(name: str, *, steps: int) -> Iterator[Callable[[], None]]:
    """A piece of work of ``steps`` parts; yields the function that marks one as done.

    On a terminal it is a bar with percentage and time left; elsewhere a line every half minute. It ends with one line
    that tells the seconds it took.
    """
    started = time.monotonic()
    if on_terminal():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        title = TextColumn("{task.description}", markup=False)  # the name of somebody's graph may look like markup
        columns = title, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
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
