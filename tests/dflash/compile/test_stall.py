"""A stall is reported with the stacks of all threads and ends the process; progress keeps it alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash.compile.stall import watch_stall
from dflash.errors import ConfigError

ROOT = Path(__file__).parents[3]


def run(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


DEADLOCK = """
import threading
from dflash.compile.stall import watch_stall
a, b = threading.Lock(), threading.Lock()
both = threading.Barrier(2)
def holder_of_b():
    with b:
        both.wait()
        a.acquire()
threading.Thread(target=holder_of_b, name="drafter-1").start()
with watch_stall("compiling", 0.5):
    with a:
        both.wait()
        b.acquire()
"""


def test_a_deadlock_ends_with_the_stacks_of_every_thread() -> None:
    done = run(DEADLOCK)
    assert done.returncode == 1
    assert "thread MainThread:" in done.stderr
    assert "thread drafter-1:" in done.stderr
    assert "holder_of_b" in done.stderr
    assert "a.acquire()" in done.stderr or "line 9" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: compiling: no progress for 0.5 s")
    assert "compile.stall_seconds" in last


@pytest.mark.parametrize(
    "closing",
    [
        "import os; os.close(2)",
        "import sys; sys.__stderr__.close()",
        "import sys; sys.stderr = None",
        "import sys; sys.stderr = sys.__stderr__ = None",
    ],
)
def test_a_stall_ends_without_a_place_to_tell_it(closing: str) -> None:
    done = run(f"{closing}\n{DEADLOCK}")
    assert done.returncode == 1
    assert done.stdout == "", "which is for data"


HOLDS_THE_LOCK = """
import re, sys
from dflash.compile import stall
stall.GRACE = 1.0
"""
FOR_EVER = "re.match('(a+)+$', 'a' * 60 + 'b')"
"""No Python code can run then, only faulthandler's clock."""


def test_a_hang_that_holds_the_interpreters_lock_ends_too() -> None:
    done = run(f"{HOLDS_THE_LOCK}\nwith stall.watch_stall('compiling', 0.5):\n    {FOR_EVER}")
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "most recent call first" in done.stderr


@pytest.mark.parametrize("closing", ["sys.__stderr__.close()", "sys.__stderr__ = None"])
def test_it_ends_without_a_place_to_tell_it(closing: str) -> None:
    done = run(f"{HOLDS_THE_LOCK}\n{closing}\nwith stall.watch_stall('compiling', 0.5):\n    {FOR_EVER}")
    assert done.returncode == 1


def test_a_watch_within_another_leaves_the_others_clock_going() -> None:
    inner = "with stall.watch_stall('inner', 60) as beat:\n        beat()"
    done = run(f"{HOLDS_THE_LOCK}\nwith stall.watch_stall('outer', 0.5):\n    {inner}\n    {FOR_EVER}")
    assert done.returncode == 1
    assert "Timeout (0:00:01" in done.stderr


def test_a_beat_after_the_end_does_nothing() -> None:
    code = f"""{HOLDS_THE_LOCK}
import time
with stall.watch_stall("over", 0.2) as beat:
    pass
beat()
time.sleep(2)
print("went on")
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_a_hang_ends_though_another_watch_goes_on_and_its_own_report_returns() -> None:
    code = f"""{HOLDS_THE_LOCK}
import threading, time
def other():
    with stall.watch_stall("training", 600) as beat:
        while True:
            time.sleep(0.1)
            beat()
def hang():
    with stall.watch_stall("compiling", 0.5, lambda message, stacks: print("told")):
        threading.Event().wait()
for work in (other, hang):
    threading.Thread(target=work, daemon=True).start()
time.sleep(20)
"""
    done = run(code)
    assert done.returncode == 1
    assert "most recent call first" in done.stderr
    assert "in hang" in done.stderr


def test_a_report_that_never_returns_ends_with_the_process_though_the_work_has_ended() -> None:
    code = f"""{HOLDS_THE_LOCK}
import threading, time
with stall.watch_stall("compiling", 0.2, lambda message, stacks: threading.Event().wait()):
    time.sleep(0.6)
"""
    done = run(code)
    assert done.returncode == 1
    assert "most recent call first" in done.stderr


def test_a_report_that_fails_does_not_hide_what_it_was_to_report() -> None:
    code = """
import time
from dflash.compile.stall import watch_stall
def on_stall(message, stacks):
    raise OSError("no log")
with watch_stall("compiling", 0.2, on_stall):
    time.sleep(60)
"""
    done = run(code)
    assert done.returncode == 1
    assert "OSError: no log" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: compiling: no progress for 0.2 s")


@pytest.mark.parametrize(
    ("error", "started"), [("RuntimeError", False), ("KeyboardInterrupt", False), ("KeyboardInterrupt", True)]
)
def test_a_watch_whose_start_fails_leaves_no_clock_behind(error: str, started: bool) -> None:
    code = f"""{HOLDS_THE_LOCK}
import threading, time
start = threading.Thread.start
def fails(thread):
    {"start(thread)" if started else "pass"}
    raise {error}
threading.Thread.start = fails
try:
    with stall.watch_stall("first", 0.2):
        pass
except {error}:
    print("caught")
threading.Thread.start = start
with stall.watch_stall("second", 60):
    time.sleep(2)
print("went on")
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught\nwent on\n", "")


def test_what_stands_in_for_stderr_needs_no_more_than_to_write() -> None:
    code = """
import sys
class Tee:
    def write(self, text):
        sys.__stderr__.write(text.upper())
    def flush(self):
        pass
sys.stderr = Tee()
"""
    done = run(code + DEADLOCK)
    assert done.returncode == 1
    assert "THREAD DRAFTER-1:" in done.stderr
    assert "ERROR: COMPILING: NO PROGRESS FOR 0.5 S" in done.stderr


def test_what_cannot_be_written_to_hides_nothing() -> None:
    done = run(f"import sys\nsys.stderr = object()\n{DEADLOCK}")
    assert done.returncode == 1
    assert "error: compiling: no progress for 0.5 s" in done.stderr


def test_a_child_forked_while_another_thread_beats_can_watch() -> None:
    code = """
import os, signal, threading
from dflash.compile.stall import watch_stall
def beats():
    with watch_stall("training", 600) as beat:
        while True:
            beat()
threading.Thread(target=beats, daemon=True).start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with watch_stall("child", 600):
            pass
        os._exit(0)
    os.waitpid(child, 0)
os._exit(0)
"""
    assert run(code).returncode == 0


def test_a_forked_child_is_not_ended_for_its_parents_work() -> None:
    code = f"""{HOLDS_THE_LOCK}
import os, time
with stall.watch_stall("parent", 1.0, lambda message, stacks: None) as beat:
    child = os.fork()
    if child == 0:
        with stall.watch_stall("child", 60):
            time.sleep(3)
        os._exit(7)
    for _ in range(8):
        time.sleep(0.5)
        beat()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_a_stall_ends_though_nobody_reads_what_it_tells() -> None:
    code = f"""
import os, sys, time
from dflash.compile import stall
stall.TELLING = 0.5
read, write = os.pipe()
os.dup2(write, 2)
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
{DEADLOCK}"""
    assert run(code).returncode == 1


def test_letters_that_stderr_cannot_show_hide_nothing() -> None:
    code = f"import io, sys\nsys.stderr = io.TextIOWrapper(sys.stderr.buffer, 'ascii')\n{DEADLOCK}"
    done = run(code.replace("holder_of_b", "größe"))
    assert done.returncode == 1
    assert "gr\\xf6" in done.stderr
    assert "error: compiling: no progress" in done.stderr


def test_a_run_that_hangs_is_recorded_as_hung(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from dflash.compile.stall import watch_stall
from dflash.runs.record import open_run
with open_run(Path({str(tmp_path / "run")!r}), resume=False, argv=["x"]) as run:
    with watch_stall("compiling", 0.3, run.hung):
        time.sleep(60)
"""
    done = run(code)
    assert done.returncode == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["exit"]) == ("hung", 1)
    assert record["reason"].startswith("compiling: no progress for 0.3 s")
    assert record["ended"]
    assert (
        "time.sleep(60)" in (tmp_path / "run" / "log.txt").read_text()
        or "<string>" in (tmp_path / "run" / "log.txt").read_text()
    )
    assert "Traceback" not in done.stderr


def test_progress_and_a_normal_end_call_nothing() -> None:
    stalls: list[str] = []
    with watch_stall("work", 0.4, lambda message, stacks: stalls.append(message)) as beat:
        for _ in range(8):
            time.sleep(0.1)
            beat()
    assert stalls == []
    assert "stall-watch" not in {thread.name for thread in threading.enumerate()}


def test_it_is_called_once_and_an_exception_passes_through() -> None:
    stalls: list[tuple[str, str]] = []

    def work() -> None:
        with watch_stall("work", 0.1, lambda message, stacks: stalls.append((message, stacks))):
            time.sleep(0.5)
            raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        work()
    assert len(stalls) == 1
    assert "time.sleep(0.5)" in stalls[0][1]


def test_what_cannot_be_called_is_refused_before_it_would_be() -> None:
    on_stall: Any = None
    with pytest.raises(ConfigError, match=r"got on_stall=None, allowed"), watch_stall("work", 1.0, on_stall):
        pass


@pytest.mark.parametrize(
    "seconds", [0.0, -1.0, -20.0, 1e30, float("inf"), float("nan"), 10**400, "600", None, [], True]
)
def test_a_time_that_no_clock_can_wait_is_refused_before_anything_starts(seconds: Any) -> None:
    stalls: list[str] = []
    with (
        pytest.raises(ConfigError, match=r"watch_stall: got .* seconds"),
        watch_stall("work", seconds, lambda message, stacks: stalls.append(message)),
    ):
        pass
    assert stalls == []
    assert "stall-watch" not in {thread.name for thread in threading.enumerate()}
