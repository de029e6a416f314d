"""What the preflight's tests share: faults to put into a process and take out again, and how a check is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch.fx._symbolic_trace as tracing
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dflash.compile import preflight
from dflash.compile.behaviour import Behaviour
from dflash.compile.checks import BEHAVIOUR_CHECKS
from envguard.errors import CheckCrashed
from envguard.findings import run_checks

ROOT = Path(__file__).parents[3]
HAZARDS = {"CMP019", "CMP020", "CMP021", "CMP022", "CMP023", "CMP025"}
FLAG_IS_SHARED = not hasattr(tracing, "_is_fx_tracing_tls")


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


def judged(**changes: Any) -> list[str]:
    sound = Behaviour(compile_problem=None, flex_problem=None, hazards=())
    return [finding.id for finding in run_checks(BEHAVIOUR_CHECKS, replace(sound, **changes))]


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
