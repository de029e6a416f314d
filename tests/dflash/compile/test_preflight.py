"""Every preflight probe, with exactly the thing broken that it is for: it alone fails, and says its remedy."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch.fx._symbolic_trace as tracing
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dflash.compile import behaviour, dense, gpu, machine, policy, preflight
from dflash.compile.behaviour import Behaviour, Hazard
from dflash.compile.checks import BEHAVIOUR_CHECKS, STATE_CHECKS
from dflash.compile.gpu import CHECKS as GPU_CHECKS
from dflash.compile.gpu import FlexFailed, FlexOnDevice
from dflash.compile.policy import POLICY
from dflash.compile.state import FX_FILE
from envguard.errors import CheckCrashed, ProbeError, UsageError
from envguard.findings import run_checks

ROOT = Path(__file__).parents[3]
HAZARDS = {"CMP019", "CMP020", "CMP021", "CMP022", "CMP023", "CMP025"}
FLAG_IS_SHARED = not hasattr(tracing, "_is_fx_tracing_tls")


@pytest.fixture(autouse=True)
def _policy_here() -> None:
    policy.apply()
    dense.install_tripwire()


def broken(**options: Any) -> list[str]:
    """Ids of what a check finds, nothing repaired; every finding names a remedy that the output shows."""
    result = preflight.check(**{"tries": False, "may_repair": False} | options)
    for finding in result.findings:
        assert finding.fix
        assert f"fix: {finding.fix}" in preflight.render(result)
        with pytest.raises((preflight.PreflightError, CheckCrashed)) as raised:
            preflight.require(result)
        assert finding.fix in str(raised.value)
    return [finding.id for finding in result.findings]


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


@contextmanager
def leaked_flag() -> Iterator[None]:
    set_flag(True)
    yield
    set_flag(False)


def set_flag(value: bool) -> None:
    if FLAG_IS_SHARED:
        tracing._is_fx_tracing_flag = value
    else:
        tracing._set_is_fx_tracing(value)


@contextmanager
def leaked_patcher() -> Iterator[None]:
    tracing.CURRENT_PATCHER = tracing._Patcher()
    yield
    tracing.CURRENT_PATCHER = None


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


def foreign_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return tracing._orig_module_call(self, *args, **kwargs)


@contextmanager
def leaked_override() -> Iterator[None]:
    set_override = torch._C._dynamo.eval_frame.set_eval_frame_override
    set_override(torch._C._dynamo.eval_frame._EvalFrameOverride.SKIP)
    yield
    set_override(torch._C._dynamo.eval_frame._EvalFrameOverride.NONE)


class SomeMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class SomeFunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def open_vmap() -> Iterator[None]:
    torch._C._functorch._vmap_increment_nesting(2, "error")
    yield
    torch._C._functorch._vmap_decrement_nesting()


@contextmanager
def stance(name: str) -> Iterator[None]:
    torch.compiler.set_stance(name)
    yield
    torch.compiler.set_stance("default")


FLEX = sys.modules["torch.nn.attention.flex_attention"]

BREAKAGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "leaked flag": ("CMP001", leaked_flag),
    "leaked patcher": ("CMP002", leaked_patcher),
    "patched module": ("CMP003", lambda: replaced(torch.nn.Module, "__call__", foreign_call)),
    "hidden hazard": ("CMP004", lambda: replaced(tracing, "is_fx_symbolic_tracing", lambda: False)),
    "wrapped tracer": ("CMP004", lambda: replaced(tracing.Tracer, "trace", lambda self, root: None)),
    "compiling flag": ("CMP005", lambda: replaced(torch.compiler, "_is_compiling_flag", True)),
    "exporting flag": ("CMP005", lambda: replaced(torch.compiler, "_is_exporting_flag", True)),
    "dispatch mode": ("CMP006", SomeMode),
    "function mode": ("CMP006", SomeFunctionMode),
    "open vmap": ("CMP007", open_vmap),
    "tracing context": ("CMP008", lambda: torch._guards.tracing(torch._guards.TracingContext(None))),
    "eager stance": ("CMP010", lambda: stance("force_eager")),
    "run-only stance": ("CMP010", lambda: stance("eager_on_recompile")),
    "dynamo off": ("CMP011", lambda: torch._dynamo.config.patch(disable=True)),
    "errors hidden": ("CMP011", lambda: torch._dynamo.config.patch(suppress_errors=True)),
    "nested traces eager": ("CMP011", lambda: torch._dynamo.config.patch(error_on_nested_fx_trace=False)),
    "other setting": ("CMP013", lambda: torch._dynamo.config.patch(fail_on_recompile_limit_hit=False)),
    "flex debug": ("CMP016", lambda: replaced(FLEX, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)),
    "foreign flex": ("CMP016", lambda: replaced(FLEX, "flex_attention", lambda q, k, v: q)),
}
if hasattr(torch._C._dynamo.eval_frame, "set_eval_frame_override"):  # 2.11 has it, 2.15 has not
    BREAKAGES["frames skipped"] = ("CMP026", leaked_override)


@pytest.mark.parametrize("name", BREAKAGES)
def test_each_broken_thing_is_found_by_its_probe_alone(name: str) -> None:
    probe, breakage = BREAKAGES[name]
    context = breakage()
    assert broken() == []
    with ExitStack() as stack:
        stack.enter_context(context)
        found = broken()
    assert found == [probe]
    assert broken() == []


def test_a_jit_trace_is_found() -> None:
    found: list[str] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        found.extend(broken())
        return x + 1

    torch.jit.trace(traced, (torch.zeros(1),))
    assert "CMP009" in found
    assert set(found) == {"CMP009"}


def test_a_limit_without_room_is_found() -> None:
    with torch._dynamo.config.patch(recompile_limit=8):
        assert broken(needed_graphs=12) == ["CMP012"]
        assert broken(needed_graphs=8) == ["CMP013"]
    with torch._dynamo.config.patch(accumulated_recompile_limit=8):
        assert broken(needed_graphs=12) == ["CMP012"]
    policy.apply(POLICY.with_room(5000))
    assert broken(needed_graphs=5000) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TRITON_INTERPRET", "1"), ("PYTORCH_JIT", "0"), ("TORCH_COMPILE_DISABLE", "1"), ("TORCHDYNAMO_DISABLE", "1")],
)
def test_a_switch_of_the_environment_is_found(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert broken() == ["CMP014"]
    monkeypatch.setenv(variable, "1" if variable == "PYTORCH_JIT" else "0")
    assert broken() == []


@pytest.mark.parametrize(
    ("variable", "setting"), [("TORCHDYNAMO_SUPPRESS_ERRORS", "suppress_errors"), ("TORCHDYNAMO_DISABLE", "disable")]
)
def test_a_switch_that_reads_as_off_hides_nothing(monkeypatch: pytest.MonkeyPatch, variable: str, setting: str) -> None:
    """torch takes any text of TORCHDYNAMO_SUPPRESS_ERRORS for yes, 0 too; of the others 0 is no."""
    monkeypatch.setenv(variable, "0")
    with torch._dynamo.config.patch({setting: True}):
        assert broken() == ["CMP014" if setting == "suppress_errors" else "CMP011"]


def test_a_package_whose_name_begins_like_torchs_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = (lambda: False).__code__.replace(co_filename=str(Path(torch.__file__).parents[1] / "torchao/patch.py"))
    monkeypatch.setattr(tracing, "is_fx_symbolic_tracing", FunctionType(patched, {}))
    assert broken() == ["CMP004"]
    monkeypatch.undo()
    vendor = patched.replace(co_filename="/home/me/torch/vendor.py")
    monkeypatch.setattr(FLEX, "flex_attention", FunctionType(vendor, {}))
    assert broken() == ["CMP016"]


def test_a_missing_assembler_is_found_for_the_gpu_that_needs_it(tmp_path: Path) -> None:
    blackwell = machine.MachineState(
        switches=(), triton=tmp_path, assemblers=("ptxas",), capabilities=((9, 0), (12, 0))
    )
    [finding] = run_checks(machine.CHECKS, blackwell)
    assert (finding.id, finding.subject) == ("CMP015", "ptxas-blackwell")
    assert "TRITON_PTXAS_BLACKWELL_PATH" in finding.fix
    assert run_checks(machine.CHECKS, replace(blackwell, capabilities=((9, 0),))) == ()
    [finding] = run_checks(machine.CHECKS, replace(blackwell, assemblers=(), capabilities=((8, 6),)))
    assert (finding.id, finding.subject) == ("CMP015", "ptxas")
    [finding] = run_checks(machine.CHECKS, replace(blackwell, triton=None))
    assert (finding.id, finding.subject) == ("CMP015", "triton")
    [skipped] = run_checks(machine.CHECKS, replace(blackwell, capabilities=()))
    assert skipped.status == "skip"


def test_the_installed_triton_has_both_assemblers_and_a_broken_path_takes_one_away(tmp_path: Path) -> None:
    assert {"ptxas", "ptxas-blackwell"} <= set(machine.look_at_machine({}).assemblers)
    gone = machine.look_at_machine({"TRITON_PTXAS_BLACKWELL_PATH": str(tmp_path / "absent")})
    assert "ptxas-blackwell" not in gone.assemblers


def test_torch_compile_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    assert broken(tries=True) == ["CMP017"]


def test_flex_attention_that_is_not_the_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def dense_flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT, -1) @ v

    monkeypatch.setattr(FLEX, "flex_attention", dense_flex)
    problem = behaviour._flex_is_captured()
    assert problem is not None
    assert "softmax" in problem
    assert judged(flex_problem=problem) == ["CMP018"]


def judged(**changes: Any) -> list[str]:
    sound = Behaviour(compile_problem=None, flex_problem=None, hazards=())
    return [finding.id for finding in run_checks(BEHAVIOUR_CHECKS, replace(sound, **changes))]


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


# Repair


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
        assert __file__ in result.findings[0].message
        assert FX_FILE not in result.findings[0].message


def test_settings_that_an_import_changed_are_put_back() -> None:
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        result = preflight.check(tries=False)
        assert result.findings == ()
        assert "recompile_limit" in result.repaired[0]
        assert torch._dynamo.config.recompile_limit >= 64


# The command


def run_preflight(code: str = "", *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that runs ``code`` first."""
    import os

    script = f"import sys\n{code}\nfrom dflash.cli.entry import main\nsys.exit(main(['preflight', *sys.argv[1:]]))"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_command_says_pass_and_what_is_handled() -> None:
    done = run_preflight("", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "pass"
    alone, after = document["stages"]
    assert (alone["stage"], after["stage"]) == ("torch alone", "after the imports")
    assert "CMP022" in {hazard["id"] for hazard in after["handled"]}


@pytest.mark.slow
def test_the_command_fails_with_the_remedy() -> None:
    done = run_preflight("", TORCH_COMPILE_DISABLE="1")
    assert done.returncode == 1
    assert "CMP014" in done.stdout
    assert "unset TORCH_COMPILE_DISABLE" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_cache_directory_that_torch_cannot_make_is_a_finding_with_its_remedy() -> None:
    """torch makes it while it is imported, and raises."""
    done = run_preflight("", "--json", TORCHINDUCTOR_CACHE_DIR=__file__ + "/cache")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["status"] == "fail"
    [stage] = document["stages"]
    assert [finding["id"] for finding in stage["findings"]] == ["DFL002"]
    assert "TORCHINDUCTOR_CACHE_DIR" in stage["findings"][0]["fix"]


def test_what_could_not_be_judged_is_the_status_of_the_document() -> None:
    """A check that crashes in the first stage outweighs one that fails."""
    code = (
        "from envguard.frozen import replace\n"
        "from dflash import doctor\n"
        "broken = replace(next(c for c in doctor.CHECKS if c.id == 'DFL001'), run=lambda host: 1 / 0)\n"
        "doctor.CHECKS = (broken, *(c for c in doctor.CHECKS if c.id == 'DFL002'))"
    )
    done = run_preflight(code, "--json", TORCHINDUCTOR_CACHE_DIR=__file__ + "/cache")
    assert done.returncode == 3
    assert json.loads(done.stdout)["status"] == "error"
