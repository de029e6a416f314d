"""What overlapping traces and calls leave is put back; what is somebody's own is left alone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch.fx._symbolic_trace as tracing

from dflash.compile import behaviour, policy, preflight
from dflash.compile.state import FX_FILE

from .preflight_faults import (
    FLAG_IS_SHARED,
    ROOT,
    broken,
    foreign_call,
    replaced,
    stance,
)

pytestmark = pytest.mark.usefixtures("policy_in_force")


def overlapping_traces() -> None:
    """Two symbolic traces, first in, first out: the flag and nn.Module's patches stay for ever (facts: leak L1)."""
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first(x: Any) -> Any:
        first_in.set()
        second_in.wait(10)
        return x

    def second(x: Any) -> Any:
        second_in.set()
        first_out.wait(10)
        return x

    def trace(function: Callable[[Any], Any], after: threading.Event | None, done: threading.Event | None) -> None:
        if after:
            after.wait(10)
        with suppress(AssertionError):  # "CURRENT_PATCHER is None in finally block": the leak at work
            tracing.symbolic_trace(function)
        if done:
            done.set()

    threads = [
        threading.Thread(target=trace, args=(first, None, first_out)),
        threading.Thread(target=trace, args=(second, first_in, None)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_overlapping_traces_leave_is_repaired_and_everything_works_again() -> None:
    overlapping_traces()
    found = broken()
    assert "CMP003" in found
    assert set(found) <= {"CMP001", "CMP002", "CMP003"}
    if FLAG_IS_SHARED:
        assert "CMP001" in found
    with pytest.raises(NameError):
        torch.nn.Identity()(1)
    result = preflight.check(tries=False)
    assert result.findings == ()
    assert any("nn.Module.__call__" in line for line in result.repaired)
    assert torch.nn.Identity()(1) == 1
    assert not tracing.is_fx_symbolic_tracing()


def overlapping_calls() -> None:
    """Two fullgraph calls, first in, first out."""
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def call(entered: threading.Event, wait: threading.Event) -> None:
        def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
            def run(*given: Any) -> Any:
                entered.set()
                wait.wait(10)
                return graph.forward(*given)

            return run

        torch.compile(lambda x: x + 1, backend=backend, fullgraph=True, dynamic=False)(torch.zeros(1))

    first = threading.Thread(target=call, args=(first_in, second_in))
    second = threading.Thread(target=call, args=(second_in, first_out))
    first.start()
    first_in.wait(10)
    second.start()
    first.join()
    assert preflight.check(tries=False).repaired == ()  # the second is still inside: no leak yet
    first_out.set()
    second.join()


def test_what_overlapping_calls_leave_is_repaired() -> None:
    def compiled_after_a_break() -> bool:
        seen: list[bool] = []

        def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
            seen.append(True)
            return graph.forward

        @torch._dynamo.disable
        def gap() -> None:
            pass

        def probe(x: torch.Tensor) -> torch.Tensor:
            gap()
            return x + 1

        torch.compile(probe, backend=backend, dynamic=False)(torch.zeros(1))
        return bool(seen)

    assert compiled_after_a_break()
    overlapping_calls()
    leaks = broken() == ["CMP026"]
    assert compiled_after_a_break() != leaks
    assert ("the leaked frame override was reset" in preflight.check(tries=False).repaired) == leaks
    assert broken() == []
    assert compiled_after_a_break()


def test_a_running_trace_is_not_repaired_away() -> None:
    with behaviour.held_trace():
        result = preflight.check(tries=False)
        ids = [finding.id for finding in result.findings]
        assert "CMP003" in ids
        assert result.repaired == ()
        if FLAG_IS_SHARED:
            assert any("threads are tracing now" in finding.message for finding in result.findings)
    assert broken() == []


def test_a_vendors_patch_is_left_alone() -> None:
    with replaced(torch.nn.Module, "__call__", foreign_call):
        result = preflight.check(tries=False)
        assert [finding.id for finding in result.findings] == ["CMP003"]
        assert torch.nn.Module.__call__ is foreign_call
        assert foreign_call.__code__.co_filename in result.findings[0].message
        assert FX_FILE not in result.findings[0].message


def test_settings_that_an_import_changed_are_put_back() -> None:
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        result = preflight.check(tries=False)
        assert result.findings == ()
        assert "recompile_limit" in result.repaired[0]
        assert torch._dynamo.config.recompile_limit >= 64


BESIDE_A_COMPILE = """
import threading
from dflash.compile import policy
import torch
policy.apply(policy.POLICY.with_room(1000))
from dflash.compile import preflight

done = threading.Event()

def compile_much():
    policy.apply(policy.POLICY.with_room(1000))  # from torch 2.12 its settings are its own
    try:
        for number in range(60):
            def f(x):
                return (torch.relu(x) * number).sum()
            torch.compile(f, fullgraph=True, dynamic=False, backend="aot_eager")(torch.ones(3, requires_grad=True))
    finally:
        done.set()

thread = threading.Thread(target=compile_much)
thread.start()
said = []
checks = 0
while not done.is_set():
    checks += 1
    result = preflight.check(tries=False)
    said += [finding.id for finding in result.findings] + list(result.repaired)
thread.join()
print(said, checks > 20, preflight.check(tries=False).findings)
"""


def test_a_compile_going_on_in_another_thread_is_no_leak() -> None:
    done = subprocess.run([sys.executable, "-c", BESIDE_A_COMPILE], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[] True ()", done.stderr


def test_a_stance_that_took_forbid_recompiles_away_is_told() -> None:
    policy.forbid_recompiles()
    with stance("default"):
        [finding] = preflight.check(tries=False).findings
        assert (finding.id, finding.fix.partition(",")[0]) == ("CMP010", "call forbid_recompiles again")
        assert preflight.check().findings == (finding,), "nothing is tried in such a state"
        policy.forbid_recompiles()
        assert preflight.check(tries=False).findings == ()
        policy.allow_recompiles()
        assert preflight.check(tries=False).findings == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"force_backend": "eager"}, "the stance is default with force_backend='eager'"),
        ({"skip_guard_eval_unsafe": True}, "the stance is default with skip_guard_eval_unsafe"),
    ],
)
def test_an_option_of_the_stance_is_told_too(options: dict[str, Any], words: str) -> None:
    torch.compiler.set_stance("default", **options)
    try:
        [finding] = preflight.check(tries=False).findings
        assert (finding.id, finding.message) == ("CMP010", words)
    finally:
        torch.compiler.set_stance("default")


BESIDE_CHECKS = """
import os, signal, sys, threading, time
from dflash.compile import policy
import torch
policy.apply()
from dflash.compile import preflight

calls = {"check": lambda: preflight.check(tries=False), "apply": policy.apply}
call = calls[sys.argv[1]]
call()

def again_and_again():
    while True:
        call()

threading.Thread(target=again_and_again, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        call()
        os._exit(0)
    os.waitpid(child, 0)
signal.signal(signal.SIGALRM, lambda *_: call())
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
until = time.monotonic() + 2
while time.monotonic() < until:
    call()
os._exit(0)
"""


@pytest.mark.parametrize("call", ["check", "apply"])
def test_forked_children_and_signal_handlers_do_not_wait_for_ever(call: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_CHECKS, call], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
