"""Ctrl-C while packages are imported, which swallow it, and in the loop: an end that the run's record tells."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time
from dflash.interrupts import ending_at_once
signal.signal(signal.SIGINT, getattr(signal, sys.argv[2]))
signal.signal(signal.SIGTERM, lambda *_: None)
with ending_at_once(lambda reason: print("recorded:", reason, flush=True)):
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        time.sleep(0.1)
    except BaseException:
        pass  # as a package does
print("went on")
"""


def run(sent: str, handler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, sent, handler]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_nobody_can_swallow_it(sent: str) -> None:
    done = run(sent, "default_int_handler")
    recorded = f"recorded: {sent} before training began; start again with --resume\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, recorded, "interrupted\n")


def test_what_the_process_ignores_stays_ignored() -> None:
    done = run("SIGINT", "SIG_IGN")
    assert (done.returncode, done.stdout) == (0, "went on\n")


LOOP = """
import os, signal, sys, time
from dflash.interrupts import ONE_PRESS, stop_signals
with stop_signals(lambda reason: print("recorded:", reason, flush=True)) as stop:
    assert not stop()
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    assert stop()
    for later in sys.argv[2:]:
        time.sleep(ONE_PRESS + 0.1)
        os.kill(os.getpid(), getattr(signal, later))
print("went on to save")
"""


def loop(*sent: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOOP, *sent]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_loop_is_told_once_by_two_of_one_press(sent: str) -> None:
    done = loop(sent)
    told = f"{sent}: saving after this step; once more to stop at once\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on to save\n", told)


def test_a_second_press_ends_the_process_and_is_recorded() -> None:
    done = loop("SIGINT", "SIGTERM")
    recorded = "recorded: SIGTERM once more: nothing saved; --resume goes on from the last checkpoint\n"
    assert (done.returncode, done.stdout) == (130, recorded)
    assert done.stderr.splitlines()[1:] == ["interrupted"]


BAR = """
import os, sys, time
from dflash.console import say, stage
with stage("work", steps=3) as advance:
    for step in range(3):
        time.sleep(0.3)
        advance()
        os.write(1, b"step %d\\n" % step)  # rich takes what is printed
        if step == 0 and sys.argv[1] == "kill":
            from dflash.interrupts import end_at_once
            end_at_once(lambda _: None, "")
"""


def bar(how: str, *, close: bool) -> tuple[int, str, str]:
    """A bar on a terminal: exit code, stdout, what the terminal saw until it was closed (after the first step)."""
    terminal, its_end = os.openpty()
    command = [sys.executable, "-c", BAR, how]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=its_end, text=True)
    os.close(its_end)
    assert process.stdout
    out = process.stdout.readline()
    if close:
        os.close(terminal)
    out += process.stdout.read()
    seen = b""
    if not close:
        with contextlib.suppress(OSError):  # what the other end of a terminal reads once it is closed
            while data := os.read(terminal, 4096):
                seen += data
        os.close(terminal)
    return process.wait(timeout=60), out, seen.decode()


def test_a_terminal_that_goes_away_takes_the_bar_and_not_the_work() -> None:
    code, out, _ = bar("", close=True)
    assert (code, out) == (0, "step 0\nstep 1\nstep 2\n")


def test_an_end_at_once_leaves_the_terminal_in_order() -> None:
    code, out, seen = bar("kill", close=False)
    assert (code, out) == (130, "step 0\n")
    assert "\x1b[?25l" in seen, "the bar hides the cursor"
    assert seen.endswith("\r\x1b[K\x1b[?25h")
    assert "interrupted\r\n" in seen
