"""``torch.compile`` as this project uses it: whole graphs, fixed shapes, and one clear line for a surprise recompile.

In: a function of tensors. Out: its compiled form. After ``policy.forbid_recompiles`` an unseen shape, dtype, device or
grad mode raises ``RecompileError`` in milliseconds, with torch's guard and the shapes of the call; nothing is compiled,
the function's other graphs and other threads go on. It adds no measurable cost to a warm call (a ``try``).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.utils._pytree import keystr, tree_flatten_with_path

from dflash.errors import ConfigError, RunError

Result = TypeVar("Result")

FORBIDDEN = "torch.compile stance is 'fail_on_recompile'"
SHOWN = 12  # arguments in one message
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
}
"""By a part of torch's guard."""


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
            described = describe(_by_name(function, args, kwargs))
            raise RecompileError(explain(name, str(error), described)) from error

    return call


def _by_name(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
        return signature.bind(*args, **kwargs).arguments
    except (ValueError, TypeError):  # torch's own functions have none; that of a wrapped one, or a hooked, is another's
        return {"args": args} | kwargs


def is_surprise(error: Exception) -> bool:
    """Whether torch refused to compile: by stance, or by the limit."""
    return isinstance(error, FailOnRecompileLimitHit) or FORBIDDEN in str(error)


def explain(name: str, torch_says: str, described: str) -> str:
    """One line: the function, the guards that failed, the shapes that came, what to do."""
    if FORBIDDEN not in torch_says:
        return (
            f"{name}: the recompile limit is hit, so torch would run it eagerly; called with {described}; "
            f"raise the limit to devices x shapes x grad modes (Policy.with_room)"
        )
    lines = [line.strip() for line in torch_says.splitlines() if line.strip().startswith("- ")]
    guards = [match[1] for line in lines if (match := _GUARD.fullmatch(line))]
    failed = "; ".join(dict.fromkeys(guards or lines)) or "it was never compiled"
    ways = [remedy for part, remedy in _REMEDIES.items() if part in failed]
    return (
        f"{name}: a new graph would be needed after the warm-up: {failed}; called with {described}; "
        f"{', or '.join([*ways, 'warm this call up, too, before recompiles are forbidden'])}"
    )


def describe(arguments: dict[str, Any]) -> str:
    """Shape, dtype and device of each tensor argument, those in lists, tuples and dictionaries too."""
    tensors = [
        f"{name}{keystr(path)} {list(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device}"
        + (" grad" if value.requires_grad else "")
        for name, argument in arguments.items()
        for path, value in tree_flatten_with_path(argument)[0]
        if isinstance(value, Tensor)
    ]
    more = f", {len(tensors) - SHOWN} more" if len(tensors) > SHOWN else ""
    mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
    return ", ".join([*tensors[:SHOWN], "grad mode" if torch.is_grad_enabled() else mode]) + more
