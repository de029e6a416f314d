"""``torch.compile`` as this project uses it: whole graphs, fixed shapes, and one clear line for a surprise recompile.

In: a function of tensors. Out: its compiled form. After ``policy.forbid_recompiles`` an unseen shape, dtype, device or
grad mode raises ``RecompileError`` in milliseconds, with torch's guard and the shapes of the call; nothing is compiled,
the function's other graphs and other threads go on. It adds no measurable cost to a warm call (a ``try``).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.exc import RecompileError as TorchRecompileError

from dflash.errors import ConfigError, RunError

Result = TypeVar("Result")

FORBIDDEN = "torch.compile stance is 'fail_on_recompile'"
SHOWN = 12  # arguments in one message
LOOKED_AT = 10_000  # values, and containers of them
DEEPEST = 8  # levels of those
_GUARD = re.compile(r"- \d+/\d+: (.*?)(?:\s{2,}#.*)?")
"""A line of torch's with a guard; the source lines that follow it have no number, what follows "#" is one."""
_REMEDIES = {
    "size mismatch": "pad to a warmed shape",
    "stride mismatch": "give it the strides of the warm-up (contiguous)",
    "dtype mismatch": "give it the dtype of the warm-up",
    "requires_grad mismatch": "give it the requires_grad of the warm-up",
    "grad_mode": "call it in the grad mode of the warm-up",
    "autocast": "call it under the autocast of the warm-up",
    ".training ==": "switch train() or eval() back",
    "num_threads": "set torch.set_num_threads as in the warm-up (a DataLoader's worker has one)",
    "deterministic_algorithms": "set torch.use_deterministic_algorithms as in the warm-up",
    "allow_tf32": "set allow_tf32 as in the warm-up",
    "default_dtype": "set torch.set_default_dtype as in the warm-up",
    "torch_function_mode_stack": "set torch.set_default_device as in the warm-up",
}
"""By a part of torch's guard."""
_CONSTANT = re.compile(r"(?!.*\.training ==)[\w.\[\]'\"]+ == ")
"""A guard of a number, string or flag that the graph was made for."""


class RecompileError(RunError):
    """A graph was needed that the warm-up has not compiled, or the recompile limit was hit."""


def compile_function(function: Callable[..., Result], *, backend: str = "inductor") -> Callable[..., Result]:
    """``function`` (a module or another callable will do) compiled as one graph a shape.

    Raises:
        ConfigError: it cannot be called.

    Raises (when called):
        RecompileError: compiling is forbidden by now and the call needs a new graph, or the limit is hit.
    """
    if not callable(function):
        raise ConfigError(f"compile_function: got {function!r}, allowed is something to call")
    compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
    name = getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function, updated=())  # a module's attributes are not ours
    def call(*args: Any, **kwargs: Any) -> Result:
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            if not is_surprise(error):
                raise
            raise RecompileError(explain(name, str(error), describe(_by_name(function, args, kwargs)))) from error

    return call


def _by_name(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
        return signature.bind(*args, **kwargs).arguments
    except Exception:  # torch's own functions have none; that of a wrapped one, or a hooked, is another's
        return {"args": args} | kwargs


def is_surprise(error: Exception) -> bool:
    """Whether torch refused to compile: by stance, by its own setting (error_on_recompile), or by the limit."""
    if isinstance(error, (FailOnRecompileLimitHit, TorchRecompileError)):
        return True
    if not isinstance(error, RuntimeError):  # what the stance raises
        return False
    try:
        return FORBIDDEN in str(error)
    except Exception:  # an error of the function's own
        return False


def explain(name: str, torch_says: str, described: str) -> str:
    """One line: the function, the guards that failed, the shapes that came, what to do."""
    lines = [line.strip() for line in torch_says.splitlines() if line.strip().startswith("- ")]
    if FORBIDDEN not in torch_says and not lines:
        return (
            f"{name}: the recompile limit is hit, so torch would run it eagerly; called with {described}; "
            f"raise the limit to devices x shapes x grad modes (Policy.with_room)"
        )
    guards = [match[1] for line in lines if (match := _GUARD.fullmatch(line))]
    reasons = list(dict.fromkeys(guards or lines))
    failed = "; ".join(reasons) or "it was never compiled, or torch._dynamo.reset (strict export, too) has forgotten it"
    ways = [remedy for part, remedy in _REMEDIES.items() if part in failed]
    if any(_CONSTANT.match(reason) for reason in reasons):
        ways.append("give it the value of the warm-up (a Python value is a part of the graph), or a tensor")
    return (
        f"{name}: a new graph would be needed after the warm-up: {failed}; called with {described}; "
        f"{', or '.join([*ways, 'warm this call up, too, before recompiles are forbidden'])}"
    )


def describe(arguments: dict[str, Any]) -> str:
    """Shape, dtype and device of each tensor argument, then plain values; those in containers and dataclasses, too."""
    tensors, values = [], []
    for path, value in itertools.islice(_nodes(arguments), LOOKED_AT):
        try:
            if isinstance(value, Tensor):
                what = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device}"
                tensors.append(f"{path} {what}{' grad' if value.requires_grad else ''}")
            elif isinstance(value, (bool, int, float, str)):
                values.append(f"{path}={reprlib.repr(value)}")
        except Exception:  # nested tensors have no shape, huge numbers no digits
            values.append(f"{path}: {type(value).__name__} that cannot be described")
    told = tensors + values
    more = f", {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
    return ", ".join([*told[:SHOWN], "grad mode" if torch.is_grad_enabled() else mode]) + more


def _nodes(arguments: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Each value and what is in it, with the expression that leads to it."""
    for name, argument in arguments.items():
        yield from _below(name, argument, DEEPEST)


def _below(path: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    yield path, value
    if depth > 1:
        for step, inner in _inside(value):
            yield from _below(path + step, inner, depth - 1)


def _inside(value: Any) -> list[tuple[str, object]]:
    """What a container holds; nothing where its own code fails, which must not hide what torch said."""
    inner: Iterable[tuple[str, object]] = ()
    try:
        if isinstance(value, dict):
            inner = ((f"[{reprlib.repr(key)}]", each) for key, each in value.items())
        elif isinstance(value, (list, tuple)):
            inner = ((f"[{index}]", each) for index, each in enumerate(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
        return list(itertools.islice(inner, LOOKED_AT))
    except Exception:
        return []
