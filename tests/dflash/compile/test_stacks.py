"""What threads are doing is read whole, whatever ends or is collected meanwhile."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from dflash.compile.stacks import read_stacks

from .preflight_faults import ROOT

DEPTH = 60


class Deep:
    """A thread that waits in ``DEPTH`` calls."""

    def __init__(self) -> None:
        self.waits, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.descend, args=(DEPTH,))

    def descend(self, depth: int) -> None:
        if depth > 1:
            self.descend(depth - 1)
        else:
            self.waits.set()
            self.go_on.wait(60)

    def __enter__(self) -> int:
        self.thread.start()
        self.waits.wait(60)
        assert self.thread.ident is not None
        return self.thread.ident

    def __exit__(self, *exc: object) -> None:
        self.go_on.set()
        self.thread.join()


def test_each_thread_has_its_calls_innermost_first() -> None:
    with Deep() as ident:
        stacks = read_stacks()
    names = [call.name for call in stacks[ident] if call.file == __file__]
    assert names == ["descend"] * DEPTH
    own = [call for call in stacks[threading.get_ident()] if call.file == __file__]
    assert [call.name for call in own] == [test_each_thread_has_its_calls_innermost_first.__name__]
    assert own[0].line == test_each_thread_has_its_calls_innermost_first.__code__.co_firstlineno + 2


COLLECTED_MEANWHILE = """
import faulthandler, gc, threading, time
from dflash.compile.stacks import read_stacks

faulthandler.enable()
faulthandler.dump_traceback_later(60, exit=True)

def deep(depth):
    if depth:
        return deep(depth - 1)
    time.sleep(0)

def wide(depth):
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = p = [0]
    if depth:
        return wide(depth - 1)
    time.sleep(0)

def work():
    while not done.is_set():
        deep(30)
        wide(20)

def collected(phase, _info):
    if phase == "start":
        time.sleep(0.0001)  # the other thread goes on: its frames end, others take their place

done = threading.Event()
thread = threading.Thread(target=work)
thread.start()
gc.callbacks.append(collected)
gc.set_threshold(1)
mixed = 0
for _ in range(1000):
    names = {call.name for call in read_stacks()[thread.ident]}
    mixed += {"deep", "wide"} <= names or "work" not in names
done.set()
thread.join()
print(mixed, gc.get_threshold()[0])
"""


def test_a_collection_meanwhile_gives_no_other_memory() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED_MEANWHILE], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr


@pytest.mark.parametrize("thresholds", [(700, 10, 10), (0, 7, 9)])
def test_thresholds_and_whether_collections_are_on_stay_as_they_are(thresholds: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(*thresholds)
    gc.disable()
    try:
        read_stacks()
        assert gc.get_threshold()[:2] == thresholds[:2]
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*before)


class Interrupt(Exception):
    """Of a signal handler."""


def interrupt(*_: object) -> None:
    raise Interrupt


def test_an_interrupted_reading_leaves_collections_on() -> None:
    def loop() -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-4))
            for _ in range(100):
                read_stacks()
        except Interrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    thresholds = gc.get_threshold()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(2000):
            with contextlib.suppress(Interrupt):
                loop()
            assert gc.get_threshold() == thresholds
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_child_forked_meanwhile_collects_and_reads() -> None:
    done = threading.Event()
    thresholds = gc.get_threshold()

    def read() -> None:
        while not done.is_set():
            read_stacks()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(50):
            child = os.fork()
            if child == 0:
                os._exit(0 if gc.get_threshold() == thresholds and read_stacks() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        reader.join()
