"""Recompiles after the warm-up: refused at once, with the guard and the shape, and nothing else is disturbed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters

from dflash.compile import policy
from dflash.compile.compiled import RecompileError, compile_function, explain
from dflash.errors import ConfigError
from envguard.errors import FINDINGS, ToolError


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()  # entries hang on code objects, which the tests share


def compiled_pair() -> tuple[nn.Linear, object]:
    linear = nn.Linear(4, 4)

    def step(features: Tensor, weights: Tensor) -> Tensor:
        return (torch.relu(linear(features)) * weights).sum()

    return linear, compile_function(step, backend="aot_eager")


def test_a_new_shape_is_refused_with_the_guard_and_the_shape() -> None:
    _, step = compiled_pair()
    step(torch.ones(3, 4), torch.ones(4)).backward()
    policy.forbid_recompiles()
    with pytest.raises(RecompileError) as raised:
        step(torch.ones(5, 4), torch.ones(4))
    [line] = str(raised.value).splitlines()
    assert line.startswith("step: a new graph would be needed after the warm-up: ")
    assert "tensor 'features' size mismatch at index 0. expected 3, actual 5" in line
    assert "features [5, 4] float32 cpu" in line
    assert line.endswith("grad mode; pad to a warmed shape, or warm this call up, too, before recompiles are forbidden")
    assert isinstance(raised.value, ToolError)
    assert raised.value.exit_code == FINDINGS


@pytest.mark.parametrize(
    ("features", "said", "remedy"),
    [
        (torch.ones(3, 4, dtype=torch.float64), "dtype mismatch", "give it the dtype"),
        (torch.ones(3, 4).requires_grad_(), "requires_grad mismatch", "give it the requires_grad"),
        (torch.ones(4, 3).T, "stride mismatch", "give it the strides"),
    ],
    ids=["dtype", "requires_grad", "stride"],
)
def test_other_guards_are_named_each_with_its_remedy(features: Tensor, said: str, remedy: str) -> None:
    _, step = compiled_pair()
    step(torch.ones(3, 4), torch.ones(4))
    policy.forbid_recompiles()
    with pytest.raises(RecompileError, match=f"{said}.*; {remedy} of the warm-up.*, or warm this call up, too, before"):
        step(features, torch.ones(4))


@pytest.mark.parametrize(
    ("mode", "said", "remedy"),
    [
        (torch.no_grad(), "no_grad", "call it in the grad mode of"),
        (torch.inference_mode(), "inference_mode", "call it in the grad mode of"),
        (torch.autocast("cpu"), r"autocast\(cpu\)", "call it under the autocast of"),
    ],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_another_mode_is_named(mode: contextlib.AbstractContextManager[object], said: str, remedy: str) -> None:
    _, step = compiled_pair()
    step(torch.ones(3, 4), torch.ones(4))
    policy.forbid_recompiles()
    with pytest.raises(RecompileError, match=f"{said}.*; {remedy} the warm-up, or "), mode:
        step(torch.ones(3, 4), torch.ones(4))


def test_a_module_in_another_mode_is_one_line_without_torchs_source_lines() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    step = compile_function(module, backend="aot_eager")
    step(torch.ones(3, 4))
    policy.forbid_recompiles()
    module.eval()
    with pytest.raises(RecompileError) as raised:
        step(torch.ones(3, 4))
    line = str(raised.value)
    assert ".training == True; called with " in line
    assert "; switch train() or eval() back, or warm this call up" in line
    assert "stack trace" not in line
    assert "F.dropout" not in line


def test_a_function_that_was_never_compiled_is_named() -> None:
    _, step = compiled_pair()
    policy.forbid_recompiles()
    with pytest.raises(RecompileError, match=r"step: .*it was never compiled"):
        step(torch.ones(3, 4), torch.ones(4))


def test_nothing_else_in_the_process_is_disturbed() -> None:
    linear, step = compiled_pair()
    other = compile_function(lambda x: x * 2, backend="aot_eager")
    step(torch.ones(3, 4), torch.ones(4)).backward()
    other(torch.ones(2))
    policy.forbid_recompiles()
    before = counters["stats"]["unique_graphs"]
    assert before > 0
    surprises: list[Exception] = []

    def warm() -> None:
        try:
            for _ in range(300):
                step(torch.ones(3, 4), torch.ones(4)).backward()
                other(torch.ones(2))
        except Exception as error:
            surprises.append(error)

    thread = threading.Thread(target=warm)
    thread.start()
    for rows in range(4, 40):
        with pytest.raises(RecompileError):
            step(torch.ones(rows, 4), torch.ones(4))
    thread.join()
    assert surprises == []
    assert counters["stats"]["unique_graphs"] == before
    assert linear.weight.grad is not None


def test_a_hit_limit_is_told_as_such() -> None:
    _, step = compiled_pair()
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        step(torch.ones(1, 4), torch.ones(4))
        step(torch.ones(2, 4), torch.ones(4))
        with pytest.raises(RecompileError, match=r"step: the recompile limit is hit.*features \[3, 4\]"):
            step(torch.ones(3, 4), torch.ones(4))


def test_errors_of_the_function_itself_pass_unchanged() -> None:
    def fails(x: Tensor) -> Tensor:
        return x.view(7)

    with pytest.raises(Exception, match="view") as raised:
        compile_function(fails, backend="aot_eager")(torch.ones(3))
    assert not isinstance(raised.value, ToolError)


def test_many_arguments_are_cut() -> None:
    message = explain("f", "torch.compile stance is 'fail_on_recompile'\n  - 0/0: a\n  - 0/1: a\n  - 0/0: b", "x [1]")
    assert "a; b; called with x [1]" in message


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def hooked() -> nn.Module:
    """Its caller gives one argument, the hook the other."""
    module = Sum()
    module.register_forward_pre_hook(lambda _module, given: (*given, torch.ones(1)))
    return module


def injected(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def with_one(x: Tensor) -> Tensor:
        return function(x, torch.ones(1))

    return with_one


@pytest.mark.parametrize("function", [hooked(), injected(torch.add), injected(lambda x, y: x + y)])
def test_a_call_that_the_signature_does_not_tell_of_is_refused_as_such(function: Callable[..., Tensor]) -> None:
    compiled = compile_function(function, backend="aot_eager")
    compiled(torch.ones(2))
    policy.forbid_recompiles()
    with pytest.raises(RecompileError, match=r"called with args\[0\] \[3\] float32 cpu"):
        compiled(torch.ones(3))


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="compile_function: got None"):
        compile_function(cast(Callable[..., Tensor], None))


class Doubler:
    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize(
    ("function", "arguments", "begins", "names"),
    [
        (nn.Linear(4, 4), lambda n: (torch.ones(n, 4),), "Linear: ", "input [3, 4]"),
        (Doubler(), lambda n: (torch.ones(n, 4),), "Doubler: ", "x [3, 4]"),
        (functools.partial(torch.add, torch.ones(1)), lambda n: (torch.ones(n, 4),), "partial: ", "args[0] [3, 4]"),
        (lambda *xs: xs[0] + xs[1], lambda n: (torch.ones(n, 4),) * 2, "<lambda>: ", "xs[0] [3, 4] float32 cpu, xs[1]"),
        (lambda d: d["x"] + 1, lambda n: ({"x": torch.ones(n, 4)},), "<lambda>: ", "d['x'] [3, 4]"),
    ],
    ids=["module", "object", "partial", "many", "dictionary"],
)
def test_whatever_is_compiled_is_named_with_the_shapes_of_its_tensors(
    function: Callable[..., Tensor], arguments: Callable[[int], tuple[object, ...]], begins: str, names: str
) -> None:
    compiled = compile_function(function, backend="aot_eager")
    compiled(*arguments(2))
    policy.forbid_recompiles()
    with pytest.raises(RecompileError) as raised:
        compiled(*arguments(3))
    assert str(raised.value).startswith(begins)
    assert names in str(raised.value)


@dataclasses.dataclass
class Batch:
    tokens: Tensor
    scale: float = 1.0


def test_a_python_value_is_told_with_its_remedy() -> None:
    compiled = compile_function(lambda x, scale=1.0: (x * scale).sum(), backend="aot_eager")
    compiled(torch.ones(4))
    policy.forbid_recompiles()
    with pytest.raises(
        RecompileError, match=r"scale == 1.0; called with x \[4\] .*, scale=0.5, .*value of the warm-up"
    ):
        compiled(torch.ones(4), scale=0.5)


def test_what_is_in_a_dataclass_is_told() -> None:
    compiled = compile_function(lambda batch: batch.tokens * batch.scale, backend="aot_eager")
    compiled(Batch(torch.ones(4)))
    policy.forbid_recompiles()
    with pytest.raises(RecompileError, match=r"called with batch.tokens \[4\] float32 cpu, batch.scale=0.5, grad mode"):
        compiled(Batch(torch.ones(4), 0.5))


@pytest.mark.parametrize(
    ("change", "back", "remedy"),
    [
        (lambda: torch.set_num_threads(1), lambda: torch.set_num_threads(2), "torch.set_num_threads"),
        (
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
            "torch.use_deterministic_algorithms",
        ),
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "torch.set_default_dtype",
        ),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None), "torch.set_default_device"),
    ],
    ids=["threads", "deterministic", "dtype", "device"],
)
def test_a_setting_of_the_process_is_told_with_its_remedy(
    change: Callable[[], None], back: Callable[[], None], remedy: str
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    x = torch.ones(3)
    compiled = compile_function(lambda x: x * 2, backend="aot_eager")
    compiled(x)
    policy.forbid_recompiles()
    change()
    try:
        with pytest.raises(RecompileError, match=f"set {remedy} as in the warm-up"):
            compiled(x)
    finally:
        back()
        torch.set_num_threads(threads)


def test_what_reset_forgot_is_told_as_such() -> None:
    _, step = compiled_pair()
    step(torch.ones(3, 4), torch.ones(4))
    policy.forbid_recompiles()
    torch._dynamo.reset()
    with pytest.raises(RecompileError, match=r"or torch\._dynamo\.reset \(strict export, too\) has forgotten it"):
        step(torch.ones(3, 4), torch.ones(4))


def test_torchs_own_setting_that_forbids_is_told_in_the_same_words() -> None:
    _, step = compiled_pair()
    step(torch.ones(3, 4), torch.ones(4))
    with (
        torch._dynamo.config.patch(error_on_recompile=True),
        pytest.raises(
            RecompileError, match=r"size mismatch at index 0. expected 3, actual 5; called with features \[5"
        ),
    ):
        step(torch.ones(5, 4), torch.ones(4))


class Unspeakable(RuntimeError):
    def __str__(self) -> str:
        raise ZeroDivisionError("of its words")


@pytest.mark.parametrize("error", [Unspeakable(), ValueError("torch.compile stance is 'fail_on_recompile'")])
def test_an_error_of_the_functions_own_is_never_taken_for_torchs(error: Exception) -> None:
    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., object]:
        def run(*_args: object) -> object:
            raise error

        return run

    compiled = compile_function(lambda x: x * 2, backend=cast(str, backend))
    with pytest.raises(type(error)) as raised:
        compiled(torch.ones(1))
    assert raised.value is error


def _ring() -> list[object]:
    ring: list[object] = [torch.ones(1)]
    ring.append(ring)
    return ring


class Key:
    def __repr__(self) -> str:
        raise ZeroDivisionError("of its words")


@dataclasses.dataclass
class Emptied:
    rows: Tensor | None = None

    def __getattribute__(self, name: str) -> object:
        if name == "rows":
            raise ZeroDivisionError("of its field")
        return super().__getattribute__(name)


def _knot() -> list[object]:
    """More paths than anybody can walk."""
    knot: list[object] = []
    knot.extend([knot] * 12)
    return knot


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (_ring(), ""),
        (_knot(), ""),
        ({Key(): torch.ones(2)}, ""),
        ([torch.ones(1)] * 20_000, ""),
        ([{} for _ in range(20_000)], ""),
        (10**5000, "more: int that cannot be described"),
        (Emptied(), ""),
    ],
    ids=["ring", "knot", "key", "tensors", "containers", "number", "field"],
)
def test_arguments_that_are_hard_to_describe_hide_nothing(argument: object, told: str) -> None:
    compiled = compile_function(lambda x, more: x * 2, backend="aot_eager")
    compiled(torch.ones(2), None)
    policy.forbid_recompiles()
    with pytest.raises(RecompileError, match=rf"a new graph would be needed .* called with x \[3\] .*{told}"):
        compiled(torch.ones(3), argument)
