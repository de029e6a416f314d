"""Tries, instead of version checks: does compiling work here, and does the policy do its work on this torch?

In: the policy, in force in this thread. Out: ``Behaviour``: two facts of compiling and the ``Hazard``s of several
threads, each present or not, handled or not. Nothing is built: backends that return the graph as it is. Run it before
other threads exist (one try holds an FX trace open for some milliseconds). About 1 s the first time, nearly all of it
imports that the first compile needs anyway.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx._symbolic_trace as tracing
from torch import Tensor

from dflash.compile.dense import tripwire_installed
from dflash.compile.policy import Policy
from envguard.errors import ProbeError

PATIENCE = 10.0  # seconds that a try may wait for its other thread
NO_ANSWER = "preflight: another thread gave no answer for {:g} s; restart the process"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hazard:
    """Something that goes wrong with several threads unless something of ours prevents it."""

    id: str
    name: str
    present: bool
    handled: bool
    found: str
    """What the try saw."""
    handled_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Behaviour:
    """What the tries saw."""

    compile_problem: str | None
    """Why a compiled call did not reach the compiler; None where it did."""
    flex_problem: str | None
    """Why flex attention is not captured as its operator; None where it is."""
    hazards: tuple[Hazard, ...]


def try_out(policy: Policy) -> Behaviour:
    """Run every try; what a try meets is a fact.

    Raises:
        ProbeError: another thread gives no answer.
    """
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in: one try needs a backward
        return _try_all(policy)


def _try_all(policy: Policy) -> Behaviour:
    compile_problem, seen = _compile_and_look()
    if compile_problem is not None:  # the other tries would only repeat it
        return Behaviour(compile_problem=compile_problem, flex_problem=None, hazards=())
    return Behaviour(
        compile_problem=None,
        flex_problem=_flex_is_captured(),
        hazards=(
            _warm_call_during_a_trace(policy),
            _settings_in_a_thread(policy),
            _is_compiling_elsewhere(*seen),
            _backward_lowered_at_forward(),
            _inductor_has_traced(),
            _static_beside_a_call(policy),
        ),
    )


def in_thread(function: Callable[[], Any]) -> Any:
    """The result of ``function`` in a new thread; its exception is raised here.

    Raises:
        ProbeError: no result within ``PATIENCE``.
    """
    box: list[Any] = []

    def run() -> None:
        try:
            box.append((True, function()))
        except BaseException as error:
            box.append((False, error))

    thread = threading.Thread(target=run, name="preflight", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not box:
        raise ProbeError(NO_ANSWER.format(PATIENCE))
    good, value = box[0]
    if not good:
        raise value
    return value


@contextmanager
def held_trace() -> Iterator[None]:
    """Another thread is inside an FX trace meanwhile."""
    entered, leave = threading.Event(), threading.Event()

    def traced(x: Any) -> Any:
        entered.set()
        leave.wait(PATIENCE)
        return x

    thread = threading.Thread(target=tracing.symbolic_trace, args=(traced,), name="preflight-trace", daemon=True)
    thread.start()
    try:
        _await(entered)
        yield
    finally:
        leave.set()
        thread.join(PATIENCE)


def _await(event: threading.Event) -> None:
    """Where the other thread never came this far, nothing was tried: that is no answer, not a good one."""
    if not event.wait(PATIENCE):
        raise ProbeError(NO_ANSWER.format(PATIENCE))


def _zeros(*size: int, requires_grad: bool = False) -> Tensor:
    """On the CPU, whatever torch.set_default_device says."""
    return torch.zeros(*size, device="cpu", requires_grad=requires_grad)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def _compile_and_look() -> tuple[str | None, tuple[bool, bool]]:
    """Compile a trivial function; meanwhile, what another thread reads of is_compiling and is_dynamo_compiling."""
    seen: list[tuple[bool, bool]] = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.append(in_thread(lambda: (torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling())))
        return graph.forward

    def probe(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_dynamo_compiling() else x - 1

    try:
        result = torch.compile(probe, backend=backend, fullgraph=True, dynamic=False)(_zeros(1)).item()
    except Exception as error:
        return _first_line(error), (False, False)
    if result != 1.0 or len(seen) != 1:
        return "the function ran eagerly: the compiler was never called", (False, False)
    return None, seen[0]


def _flex_is_captured() -> str | None:
    flex = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    targets: list[str] = []

    class Enough(Exception):
        pass

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        raise Enough

    def probe(q: Tensor) -> Tensor:
        out: Tensor = flex(q, q, q)
        return out

    try:
        torch.compile(probe, backend=backend, fullgraph=True, dynamic=False)(_zeros(1, 1, 16, 16))
    except Exception as error:
        if not targets:
            return _first_line(error)
    return None if "flex_attention" in targets else f"the graph holds {', '.join(targets) or 'nothing'}"


def _warm_call_during_a_trace(policy: Policy) -> Hazard:
    def probe(x: Tensor) -> Tensor:
        return x * 2

    # Not fullgraph: a fullgraph call that raises here leaves a frame override behind (CMP026).
    compiled = torch.compile(probe, backend=lambda graph, _inputs: graph.forward, dynamic=False)
    compiled(_zeros(1))

    def warm() -> str:
        policy.apply()
        try:
            compiled(_zeros(1))
        except Exception as error:
            return _first_line(error)
        return ""

    with held_trace():
        shared: bool = in_thread(lambda: getattr(tracing, "_get_is_fx_tracing", lambda: tracing._is_fx_tracing_flag)())
        failed = in_thread(warm)
    return Hazard(
        id="CMP019",
        name="warm calls while another thread traces",
        present=shared,
        handled=not failed,
        found=failed or ("every thread sees the tracing flag" if shared else "the tracing flag is the thread's own"),
        handled_by="force_compile_during_fx_trace",
    )


def _settings_are_shared() -> bool:
    config: Any = torch._dynamo.config
    mark = 1_000_003
    with config.patch(recompile_limit=mark):
        return bool(in_thread(lambda: config.recompile_limit) == mark)


def _settings_in_a_thread(policy: Policy) -> Hazard:
    own = not _settings_are_shared()

    def applied() -> list[str]:
        policy.apply()
        return [line.name for line in policy.broken()]

    broken = in_thread(applied)
    return Hazard(
        id="CMP020",
        name="settings in other threads",
        present=own,
        handled=not broken,
        found=f"not in force after apply(): {', '.join(broken)}"
        if broken
        else f"a setting is {'the thread' if own else 'the process'}'s own",
        handled_by="policy.apply in every thread (PolicyThread, ThreadPoolExecutor(initializer=policy.apply))",
    )


def _is_compiling_elsewhere(is_compiling: bool, is_dynamo_compiling: bool) -> Hazard:
    return Hazard(
        id="CMP021",
        name="is_compiling() in other threads",
        present=is_compiling,
        handled=not is_dynamo_compiling and tripwire_installed(),
        found=f"while one thread compiles, another reads is_compiling() {is_compiling}, "
        f"is_dynamo_compiling() {is_dynamo_compiling}",
        handled_by="is_dynamo_compiling() in our own attention, the tripwire for others'",
    )


def _backward_lowered_at_forward() -> Hazard:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    lowered: list[str] = []

    def lower(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        return make_boxed_func(graph.forward)

    def lower_backward(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        lowered.append("backward")
        return make_boxed_func(graph.forward)

    def probe(x: Tensor) -> Tensor:
        return (x * 3).sum()

    backend: Any = aot_autograd(fw_compiler=lower, bw_compiler=lower_backward)
    compiled = torch.compile(probe, backend=backend, fullgraph=True, dynamic=False)
    compiled(_zeros(1, requires_grad=True))
    return Hazard(
        id="CMP022",
        name="when a backward is compiled",
        present=True,
        handled=bool(lowered),
        found="with the forward, in the calling thread" if lowered else "at the first backward, in the autograd thread",
        handled_by="force_non_lazy_backward_lowering",
    )


def _inductor_has_traced() -> Hazard:
    from torch._inductor.loop_body import InterpreterShim

    with held_trace():
        try:
            in_thread(lambda: torch.nn.Identity()(1))
            patched = False
        except NameError:
            patched = True
    done = InterpreterShim._dummy_gm.cache_info().currsize > 0
    return Hazard(
        id="CMP023",
        name="plain modules while another thread runs symbolic_trace",
        present=patched,
        handled=done,
        found="a module call of another thread raises NameError" if patched else "module calls of other threads work",
        handled_by="inductor's one symbolic trace is made before other threads exist"
        + ("" if done else " (it is not made yet)"),
    )


def _static_beside_a_call(policy: Policy) -> Hazard:
    """Another thread's compiled call ends between our entry and our compile of a second shape."""
    entered, leave = threading.Event(), threading.Event()
    dynamic: list[bool] = []

    def holding(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            entered.set()
            leave.wait(PATIENCE)
            return graph.forward(*given)

        return run

    def looking(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        dynamic.append(any(isinstance(given, torch.SymInt) for given in inputs))
        return graph.forward

    def held(x: Tensor) -> Tensor:
        return x + 1

    def call_elsewhere() -> None:
        policy.apply()
        torch.compile(held, backend=holding, dynamic=False)(_zeros(1))

    other = threading.Thread(target=call_elsewhere, name="preflight-call", daemon=True)

    @torch._dynamo.disable  # type: ignore[untyped-decorator,unused-ignore]  # a graph break: what follows compiles later
    def let_it_end() -> None:
        leave.set()
        if other.ident is not None:
            other.join(PATIENCE)

    def probe(x: Tensor) -> Tensor:
        let_it_end()
        return x * 2

    compiled = torch.compile(probe, backend=looking, dynamic=False)
    compiled(_zeros(2))
    leave.clear()
    other.start()
    _await(entered)
    compiled(_zeros(3))
    found = {(False, False): "each shape was compiled as it is", (): "code after a graph break is not compiled"}
    return Hazard(
        id="CMP025",
        name="dynamic=False while another thread's call ends",
        present=_settings_are_shared(),
        handled=dynamic == [False, False],
        found=found.get(tuple(dynamic), "the second shape was compiled as dynamic"),
        handled_by="automatic_dynamic_shapes",
    )
