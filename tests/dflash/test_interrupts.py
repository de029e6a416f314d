"""Ctrl-C while packages are imported, which swallow it: the process ends at once, and the run's record says so."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize("sent", [signal.SIGINT.name, signal.SIGTERM.name])
def test_nobody_can_swallow_it(sent: str) -> None:
    done = run(sent, "default_int_handler")
    recorded = f"recorded: {sent} before the first step; start again, or --resume\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, recorded, "interrupted\n")


def test_what_the_process_ignores_stays_ignored() -> None:
    done = run("SIGINT", "SIG_IGN")
    assert (done.returncode, done.stdout) == (0, "went on\n")
