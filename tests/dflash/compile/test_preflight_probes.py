"""Every probe of the state, with exactly the thing broken that it is for: it alone fails, and says its remedy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch.fx._symbolic_trace as tracing

from dflash.compile import behaviour, machine, policy
from dflash.compile.policy import POLICY
from envguard.findings import run_checks

from .preflight_faults import (
    FLEX,
    SomeFunctionMode,
    SomeMode,
    broken,
    foreign_call,
    leaked_flag,
    leaked_override,
    leaked_patcher,
    open_vmap,
    replaced,
    stance,
)

pytestmark = pytest.mark.usefixtures("policy_in_force")


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
