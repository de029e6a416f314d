"""Preflight as a whole: a sound process, tries in other threads, and what each behaviour needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch.fx._symbolic_trace as tracing

from dflash.compile import behaviour, dense, gpu, machine, policy, preflight
from dflash.compile.behaviour import Hazard
from dflash.compile.checks import BEHAVIOUR_CHECKS, STATE_CHECKS
from dflash.compile.gpu import CHECKS as GPU_CHECKS
from dflash.compile.gpu import FlexFailed, FlexOnDevice
from dflash.compile.policy import POLICY
from dflash.errors import ConfigError
from envguard.errors import CheckCrashed, ProbeError, UsageError
from envguard.findings import run_checks

from .preflight_faults import (
    FLAG_IS_SHARED,
    HAZARDS,
    ROOT,
    judged,
)

pytestmark = pytest.mark.usefixtures("policy_in_force")


def test_a_sound_process_has_no_finding() -> None:
    result = preflight.check()
    assert result.findings == ()
    assert result.repaired == ()
    assert {hazard.id for hazard in result.handled + result.absent} == HAZARDS
    assert preflight.require(result) is result


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_tries_do_not_depend_on_the_callers_grad_mode(mode: Callable[[], Any]) -> None:
    with mode():
        assert preflight.check().findings == ()


def test_a_default_device_is_a_setting_not_a_leak() -> None:
    torch.set_default_device("meta")
    try:
        assert preflight.check().findings == ()
    finally:
        torch.set_default_device(None)


def test_tries_after_compiling_is_forbidden_are_refused_and_the_rest_still_runs() -> None:
    policy.forbid_recompiles()
    with pytest.raises(UsageError, match="tries=False"):
        preflight.check()
    assert preflight.check(tries=False).findings == ()


@pytest.mark.parametrize("setting", ["error_on_recompile", "compiled_autograd"])
def test_a_setting_that_the_tries_do_not_survive_is_refused(setting: str) -> None:
    with torch._dynamo.config.patch({setting: True}):
        with pytest.raises(UsageError, match=f"{setting}: check before it is set"):
            preflight.check()
        assert preflight.check(tries=False).findings == ()


def test_a_try_that_meets_an_error_of_its_own_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_policy: object) -> None:
        raise AssertionError("of torch\nwith more lines")

    monkeypatch.setattr(behaviour, "_warm_call_during_a_trace", fails)
    with pytest.raises(
        CheckCrashed, match=r"^preflight \(now\): its tries do not work here \(AssertionError: of torch\)"
    ):
        preflight.check()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"policy": None}, "policy=None"), ({"needed_graphs": "3"}, "'3'"), ({"needed_graphs": -1}, "needed_graphs=-1")],
)
def test_what_is_no_policy_and_no_number_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        preflight.check(tries=False, **options)


TOGETHER = """
import threading
from dflash.compile import policy
import torch
policy.apply()
from dflash.compile import dense, preflight

dense.install_tripwire()
preflight.check()
said = []

def judge():
    policy.apply()  # as every thread does: from torch 2.12 its settings are its own
    try:
        result = preflight.check()
    except Exception as error:
        said.append(repr(error))
    else:
        said.append([*[finding.id for finding in result.findings], *result.repaired])

for _ in range(4):
    threads = [threading.Thread(target=judge) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print([each for each in said if each], len(said), preflight.check(tries=False).repaired)
"""


def test_threads_that_check_together_do_not_break_one_another() -> None:
    done = subprocess.run([sys.executable, "-c", TOGETHER], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 12 ()"
    assert done.stderr == ""


def test_a_try_whose_other_thread_never_came_far_enough_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behaviour, "PATIENCE", 0.2)
    monkeypatch.setattr(tracing, "symbolic_trace", lambda function: None)
    with pytest.raises(ProbeError, match="no answer"):
        behaviour._warm_call_during_a_trace(POLICY)
    with pytest.raises(ProbeError, match="no answer"):
        behaviour._inductor_has_traced()


def test_a_torch_that_keeps_its_state_elsewhere_is_told_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tracing, "CURRENT_PATCHER")
    with pytest.raises(CheckCrashed, match=r"torch .* elsewhere \(.*'CURRENT_PATCHER'\)"):
        preflight.check()


class NoPolicy:
    """What a thread has that nobody told."""

    def apply(self) -> None:
        pass

    def broken(self) -> tuple[()]:
        return ()


def test_warm_calls_beside_a_trace_need_the_policy_where_the_flag_is_shared() -> None:
    with torch._dynamo.config.patch(force_compile_during_fx_trace=False):
        hazard = behaviour._warm_call_during_a_trace(NoPolicy())
    assert hazard.present == FLAG_IS_SHARED
    assert hazard.handled != FLAG_IS_SHARED
    assert ("using FX to symbolically trace" in hazard.found) == FLAG_IS_SHARED
    assert judged(hazards=(hazard,)) == ["CMP019"] * FLAG_IS_SHARED
    assert behaviour._warm_call_during_a_trace(POLICY).handled


def test_a_lazy_backward_needs_the_policy() -> None:
    with torch._functorch.config.patch(force_non_lazy_backward_lowering=False):
        hazard = behaviour._backward_lowered_at_forward()
    assert not hazard.handled
    assert judged(hazards=(hazard,)) == ["CMP022"]
    assert behaviour._backward_lowered_at_forward().handled


def test_a_setting_that_cannot_reach_a_thread_is_found() -> None:
    class Deaf(NoPolicy):
        def broken(self) -> Any:
            return POLICY.lines[:1]

    hazard = behaviour._settings_in_a_thread(Deaf())
    assert not hazard.handled
    assert judged(hazards=(replace(hazard, present=True),)) == ["CMP020"]
    assert behaviour._settings_in_a_thread(POLICY).handled


def test_is_compiling_in_another_thread_needs_the_tripwire() -> None:
    assert behaviour._is_compiling_elsewhere(True, False).handled
    assert not behaviour._is_compiling_elsewhere(True, True).handled
    dense.remove_tripwire()
    hazard = behaviour._is_compiling_elsewhere(True, False)
    assert judged(hazards=(hazard,)) == ["CMP021"]
    assert judged(hazards=(replace(hazard, present=False),)) == []


def test_inductors_own_trace_is_made_by_the_policy() -> None:
    from torch._inductor.loop_body import InterpreterShim

    InterpreterShim._dummy_gm.cache_clear()
    hazard = behaviour._inductor_has_traced()
    assert (hazard.present, hazard.handled) == (True, False)
    assert judged(hazards=(hazard,)) == ["CMP023"]
    policy.apply()
    assert behaviour._inductor_has_traced().handled


def test_static_shapes_need_the_policy_where_settings_are_shared() -> None:
    shared = behaviour._settings_are_shared()
    with torch._dynamo.config.patch(automatic_dynamic_shapes=True):
        hazard = behaviour._static_beside_a_call(NoPolicy())
    assert hazard.present == shared
    assert hazard.handled != shared
    assert judged(hazards=(hazard,)) == ["CMP025"] * shared
    assert behaviour._static_beside_a_call(POLICY).handled


SOUND_GPU = FlexOnDevice(
    device="cuda:0", relative_error=0.002, peak_bytes=100, dense_bytes=1000, new_graphs=0, kernel="torch's own"
)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(SOUND_GPU, relative_error=0.5), "0.5 off the reference"),
        (replace(SOUND_GPU, relative_error=float("nan")), "nan off the reference"),
        (replace(SOUND_GPU, peak_bytes=3 << 20, dense_bytes=2 << 20), "took 3 MiB, as much as the dense path's 2 MiB"),
        (replace(SOUND_GPU, new_graphs=2), "a second call compiled 2 new graphs"),
        (FlexFailed(device="cuda:0", error="PTXASError: no sm_120"), "does not run: PTXASError: no sm_120"),
    ],
)
def test_a_gpu_that_computes_flex_wrongly_is_found(seen: FlexOnDevice | FlexFailed, words: str) -> None:
    [finding] = run_checks(GPU_CHECKS, seen)
    assert (finding.id, finding.status, finding.subject) == ("CMP024", "fail", "cuda:0")
    assert words in finding.message
    assert "drafter.attention = sdpa" in finding.fix
    assert run_checks(GPU_CHECKS, SOUND_GPU) == ()


def test_a_device_that_cannot_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu, "try_flex", lambda device: (_ for _ in ()).throw(RuntimeError(f"{device} is on fire")))
    result = gpu.check_gpus()
    assert [finding.id for finding in result.findings] == ["CMP024"]
    assert "RuntimeError: cuda:0 is on fire" in result.findings[0].message
    assert result.exit_code == 1


def test_every_check_has_its_own_id_summary_and_remedy() -> None:
    checks = (*STATE_CHECKS, *machine.CHECKS, *BEHAVIOUR_CHECKS)
    assert len({check.id for check in checks}) == len(checks) == 25
    assert all(check.summary and check.why.endswith(".") and check.fix for check in checks)


def test_a_handled_hazard_is_told_apart_from_a_broken_state() -> None:
    hazard = Hazard(id="CMP019", name="n", present=True, handled=True, found="f", handled_by="h")
    assert judged(hazards=(hazard,)) == []
    assert judged(hazards=(replace(hazard, handled=False),)) == ["CMP019"]
