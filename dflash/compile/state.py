"""The FX and compile state of this process and thread, as facts; and the repair of what a broken trace leaves behind.

In: torch's own globals and thread-locals, read in about 0.2 ms. Out: a frozen ``TorchState``; ``checks.py`` judges it.
``repair`` puts back what is safe to put back, and only where no thread is tracing. Run it before other threads exist,
and in each worker thread (modes, transforms, and from torch 2.12 settings are the thread's own).
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
import torch.fx._symbolic_trace as tracing
from torch._C._dynamo import eval_frame
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dflash.compile.machine import is_on
from dflash.compile.policy import Policy, recompiles_are_forbidden
from dflash.compile.stacks import read_stacks

TORCH_DIR = os.path.join(os.path.dirname(torch.__file__), "")
"""With the separator at its end: torchao's directory begins like torch's."""
FX_FILE = tracing.__file__
EVAL_FRAME_FILE = torch._dynamo.eval_frame.__file__
COMPILE_FILE = torch._dynamo.convert_frame.__file__
MODULE_FILE = os.path.join(TORCH_DIR, "nn", "modules", "module.py")
PATCHERS = ("sglang", "flashinfer", "vllm", "transformers", "peft", "accelerate", "unsloth", "deepspeed", "torchao")
"""Packages that are known to replace parts of torch when imported; those that are here are named beside a finding."""

LOOKS = 4
"""Readings before what may be another thread's trace, call or compile that just ends counts as left behind."""

EAGER_SETTINGS: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
    ("disable", False, ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")),
    ("suppress_errors", False, ("TORCHDYNAMO_SUPPRESS_ERRORS",)),
    ("error_on_nested_fx_trace", True, ()),
)
"""Setting of Dynamo, its sound value, and the variables that set it (what CMP014 tells is not told twice)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchState:
    """What a sound process looks like is the comment; ``checks.py`` says it in words."""

    tracing_flag: bool
    """False: this thread (torch up to 2.13: any thread) is in an FX trace."""
    patcher: bool
    """False: an FX patcher is current."""
    foreign_methods: tuple[tuple[str, str], ...]
    """(): methods of nn.Module that are not torch's, and the file of what is there instead."""
    foreign_functions: tuple[tuple[str, str], ...]
    """(): functions of torch.fx that are not torch's, and their file."""
    running_traces: int
    """0: threads that are inside ``Tracer.trace`` at this moment."""
    running_compiles: int
    """Those of them that are within a compilation: flag, patcher and patches are its own, and end with it."""
    compiling: bool
    """False: ``is_compiling()``, which from torch 2.13 is of the process, while no thread compiles."""
    exporting: bool
    frame_override: bool
    """False: what a fullgraph call sets for the frames below it, while no compiled call is going on."""
    modes: tuple[str, ...]
    """(): dispatch modes and torch function modes of this thread."""
    functorch_depth: int
    tracing_context: bool
    jit_tracing: bool
    stance: str
    """"default", or "fail_on_recompile"; what else was set with it follows its name."""
    forbidden: bool
    """Whether ``forbid_recompiles`` asked for the latter."""
    eager_settings: tuple[tuple[str, object], ...]
    """(): settings of Dynamo that fall back to eager code, and their values."""
    recompile_limit: int
    needed_graphs: int
    """devices x shapes x grad modes of one function."""
    broken_lines: tuple[tuple[str, object, object], ...]
    """(): lines of the policy that are not in force here: setting, wanted, found."""
    foreign_flex: str | None
    """None: the file of a ``flex_attention`` that is not torch's."""
    flex_debug: bool
    """False: ``_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG``."""
    patching_packages: tuple[str, ...]
    """Those of ``PATCHERS`` that are imported."""


def look(policy: Policy, needed_graphs: int = 1) -> TorchState:
    """Read the state of this thread and process.

    A trace or a call of another thread may begin or end meanwhile: what looks like its leavings is read again.
    """
    for _ in range(LOOKS):
        state = _read(policy, needed_graphs)
        left = not state.running_traces and (state.tracing_flag or state.patcher or state.foreign_methods)
        if not (left or state.compiling or state.frame_override):
            break
        time.sleep(0.001)
    return state


def _read(policy: Policy, needed_graphs: int) -> TorchState:
    config: Any = torch._dynamo.config
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    flag, patcher = _flag(), tracing.CURRENT_PATCHER is not None
    compiling, frame_override = torch.compiler.is_compiling(), _frame_override()
    foreign_methods = tuple(
        (name, file)
        for name in ("__call__", "__getattr__")
        if (file := _file(getattr(torch.nn.Module, name))) != MODULE_FILE
    )
    # Whose they are, only where there is anything: stacks of threads that compile are deep.
    stacks = _stacks() if flag or patcher or foreign_methods or compiling or frame_override else ()
    traces = [stack for stack in stacks if (FX_FILE, "trace") in stack]
    return TorchState(
        tracing_flag=flag,
        patcher=patcher,
        foreign_methods=foreign_methods,
        foreign_functions=tuple(
            (name, file)
            for name, function in (
                ("is_fx_symbolic_tracing", tracing.is_fx_symbolic_tracing),
                ("Tracer.trace", tracing.Tracer.trace),
            )
            if not (file := _file(function)).startswith(TORCH_DIR)
        ),
        running_traces=len(traces),
        running_compiles=sum((COMPILE_FILE, "_compile") in stack for stack in traces),
        compiling=compiling and not any((COMPILE_FILE, "_compile") in stack for stack in stacks),
        exporting=torch.compiler.is_exporting(),
        frame_override=frame_override and not any((EVAL_FRAME_FILE, "compile_wrapper") in stack for stack in stacks),
        modes=tuple(type(mode).__name__ for mode in _get_current_dispatch_mode_stack()) + _function_modes(),
        functorch_depth=torch._C._functorch.get_dynamic_layer_stack_depth(),
        tracing_context=torch._guards.TracingContext.try_get() is not None,
        jit_tracing=torch._C._is_tracing(),
        stance=_stance(),
        forbidden=recompiles_are_forbidden(),
        eager_settings=tuple(
            (name, getattr(config, name))
            for name, sound, variables in EAGER_SETTINGS
            if getattr(config, name, sound) != sound
            and not any(is_on(variable, os.environ.get(variable, "")) for variable in variables)
        ),
        recompile_limit=min(config.recompile_limit, config.accumulated_recompile_limit),
        needed_graphs=needed_graphs,
        broken_lines=tuple((f"{line.module}.{line.name}", line.value, line.now()) for line in policy.broken()),
        foreign_flex=None if (file := _file(flex.flex_attention)).startswith(TORCH_DIR) else file,
        flex_debug=bool(getattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)),
        patching_packages=tuple(name for name in PATCHERS if name in sys.modules),
    )


def repair(state: TorchState, policy: Policy) -> tuple[str, ...]:
    """Undo what a dead trace left and apply the policy again; says what was done. Nothing while a thread is tracing."""
    done: list[str] = []
    if state.broken_lines:
        policy.apply()
        done.append(
            f"the policy was not in force and was applied: {', '.join(name for name, _, _ in state.broken_lines)}"
        )
    if state.running_traces:
        return tuple(done)
    if state.tracing_flag:
        _clear_flag()
        done.append("the leaked FX tracing flag was cleared")
    if state.patcher:
        tracing.CURRENT_PATCHER = None
        done.append("the leaked FX patcher was dropped")
    if state.frame_override:
        eval_frame.set_eval_frame_override(eval_frame._EvalFrameOverride.NONE)
        done.append("the leaked frame override was reset")
    originals = {"__call__": tracing._orig_module_call, "__getattr__": tracing._orig_module_getattr}
    for name, file in state.foreign_methods:
        if file == FX_FILE and _file(originals[name]) == MODULE_FILE:  # a vendor's patch is not ours to undo
            setattr(torch.nn.Module, name, originals[name])
            done.append(f"nn.Module.{name}, left patched by an FX trace, is torch's own again")
    return tuple(done)


def _flag() -> bool:
    """The raw flag: ``is_fx_symbolic_tracing`` hides it while anything compiles."""
    read: Callable[[], bool] | None = getattr(tracing, "_get_is_fx_tracing", None)  # torch 2.14 and later: per thread
    return read() if read else bool(tracing._is_fx_tracing_flag)


def _clear_flag() -> None:
    write: Callable[[bool], None] | None = getattr(tracing, "_set_is_fx_tracing", None)
    if write:
        write(False)
    else:
        tracing._is_fx_tracing_flag = False


def _frame_override() -> bool:
    """Whether one is set; it is the process's, and torch has no reader, so it is set and set back.

    In one step of C: between two of Python a call of another thread could end, and what it had set would stay for ever.
    """
    put: Callable[[Any], Any] | None = getattr(eval_frame, "set_eval_frame_override", None)  # 2.15 has none
    if put is None:
        return False
    none = eval_frame._EvalFrameOverride.NONE
    before, again = itertools.tee(map(put, (none,)))
    next(map(put, before))  # put(put(none))
    return bool(next(again) != none)


def _stacks() -> tuple[set[tuple[str, str]], ...]:
    """File and name of the functions that each thread is in."""
    return tuple({(call.file, call.name) for call in calls} for calls in read_stacks().values())


def _stance() -> str:
    """With the options of ``set_stance`` that replace the compiler or skip guards."""
    stance = torch._dynamo.eval_frame._stance
    backend = getattr(stance, "backend", None)
    return (
        stance.stance
        + (f" with force_backend={backend!r}" if backend is not None else "")
        + (" with skip_guard_eval_unsafe" if getattr(stance, "skip_guard_eval_unsafe", False) else "")
    )


def _function_modes() -> tuple[str, ...]:
    """All but that of ``torch.set_default_device``, a setting that Dynamo compiles with."""
    modes = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    return tuple(type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext))


def _file(function: Any) -> str:
    """Where a function's code is; ``__qualname__`` and ``__module__`` lie behind ``functools.wraps``."""
    code = getattr(function, "__code__", None)
    return code.co_filename if code is not None else f"<{type(function).__name__}>"
