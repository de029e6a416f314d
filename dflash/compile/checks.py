"""The registry of compile-state checks: what each asserts, why, and the remedy. Pure functions of what was read.

In: ``TorchState`` and ``Behaviour``. Out: ``Problem``s. CMP014 and CMP015 live in ``machine.py``, since doctor runs
them without torch. Nothing is read or repaired here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from envguard.findings import Check, Problem

if TYPE_CHECKING:
    from dflash.compile.behaviour import Behaviour
    from dflash.compile.state import TorchState

FAMILIES = {"CMP": "Compile state"}


def _one(
    subject: str, wrong: Callable[[TorchState], bool], message: Callable[[TorchState], str]
) -> Callable[[TorchState], Iterable[Problem]]:
    """A check with one yes-or-no question; the packages that are known to patch torch are named beside it."""

    def run(state: TorchState) -> Iterable[Problem]:
        if wrong(state):
            yield Problem(subject=subject, message=message(state) + _suspects(state))

    return run


def _suspects(state: TorchState) -> str:
    return f" (imported: {', '.join(state.patching_packages)})" if state.patching_packages else ""


def _compiles_alone(state: TorchState) -> bool:
    """Whether all traces going on are of compilations: beside those other threads' calls work (CMP019, CMP023)."""
    return 0 < state.running_traces == state.running_compiles


def _flag(state: TorchState) -> Iterable[Problem]:
    if state.tracing_flag and not _compiles_alone(state):
        busy = (
            f", and {state.running_traces} threads are tracing now" if state.running_traces else ", and nothing traces"
        )
        yield Problem(subject="FX tracing flag", message=f"the FX tracing flag is set{busy}{_suspects(state)}")


def _methods(state: TorchState) -> Iterable[Problem]:
    from dflash.compile.state import FX_FILE

    for name, file in state.foreign_methods:
        if file == FX_FILE and _compiles_alone(state):
            continue
        busy = f", and {state.running_traces} threads are tracing now" if state.running_traces else ""
        yield Problem(subject=f"nn.Module.{name}", message=f"nn.Module.{name} is from {file}{busy}{_suspects(state)}")


def _functions(state: TorchState) -> Iterable[Problem]:
    for name, file in state.foreign_functions:
        yield Problem(subject=f"torch.fx {name}", message=f"torch.fx's {name} is from {file}{_suspects(state)}")


def _stance(state: TorchState) -> Iterable[Problem]:
    if state.stance == "fail_on_recompile":
        return
    if state.forbidden:
        yield Problem(
            subject="stance",
            message=f"the stance is {state.stance}, though recompiles are forbidden: a new shape is no error by now",
            expected="fail_on_recompile",
            observed=state.stance,
            fix="call forbid_recompiles again, or allow_recompiles if that was meant; find who set it",
        )
    elif state.stance != "default":
        yield Problem(subject="stance", message=f"the stance is {state.stance}")


def _eager_settings(state: TorchState) -> Iterable[Problem]:
    for name, value in state.eager_settings:
        yield Problem(
            subject=f"torch._dynamo.config.{name}",
            message=f"torch._dynamo.config.{name} is {value}: torch falls back to eager code without an error",
            observed=str(value),
        )


def _limit(state: TorchState) -> Iterable[Problem]:
    if state.recompile_limit < state.needed_graphs:
        yield Problem(
            subject="recompile limit",
            message=f"the recompile limit is {state.recompile_limit} and this run needs {state.needed_graphs} "
            f"graphs of one function (devices x shapes x grad modes)",
            expected=str(state.needed_graphs),
            observed=str(state.recompile_limit),
        )


def _policy(state: TorchState) -> Iterable[Problem]:
    for setting, wanted, found in state.broken_lines:
        if not setting.endswith("recompile_limit") or state.recompile_limit >= state.needed_graphs:
            yield Problem(
                subject=setting,
                message=f"{setting} is {found} in this thread, and the policy wants {wanted}{_suspects(state)}",
                expected=str(wanted),
                observed=str(found),
            )


def _flex(state: TorchState) -> Iterable[Problem]:
    if state.foreign_flex is not None or state.flex_debug:
        what = "its debug switch makes it dense" if state.flex_debug else f"it is from {state.foreign_flex}"
        yield Problem(subject="flex_attention", message=f"flex attention is not torch's compiled one: {what}")


STATE_CHECKS: tuple[Check[TorchState], ...] = (
    Check(
        id="CMP001",
        summary="no FX trace is left open",
        why="While the flag is set every compiled call of the process raises 'using FX to symbolically trace a "
        "dynamo-optimized function'. Two overlapping traces, or a dense flex call beside one, leave it set for ever.",
        fix="find what traces (torch.fx, export, quantisation) and run it in one thread; preflight clears a leaked "
        "flag, else restart the process",
        run=_flag,
    ),
    Check(
        id="CMP002",
        summary="no FX patcher is left behind",
        why="The next trace would undo another's patches and fail with 'CURRENT_PATCHER is None in finally block'.",
        fix="run traces in one thread; preflight drops a leaked patcher, else restart the process",
        run=_one(
            "FX patcher",
            lambda s: s.patcher and not s.running_traces,
            lambda s: "an FX patcher is current although nothing traces",
        ),
    ),
    Check(
        id="CMP003",
        summary="nn.Module's __call__ and __getattr__ are torch's own",
        why="Left patched by FX, every module call raises NameError; patched by a package, Dynamo traces that package.",
        fix="find the package that patched it by importing one at a time; preflight undoes FX's own leaked patch",
        run=_methods,
    ),
    Check(
        id="CMP004",
        summary="the functions of torch.fx are torch's own",
        why="A replaced is_fx_symbolic_tracing hides the hazard from torch and from these checks.",
        fix="uninstall or do not import the package that the file belongs to",
        run=_functions,
    ),
    Check(
        id="CMP005",
        summary="nothing is compiling or exporting",
        why="A leaked export or compile context makes torch.compile and transformers take their other branches.",
        fix="end the export in its with block, or restart the process",
        run=_one(
            "compile flags",
            lambda s: s.compiling or s.exporting,
            lambda s: f"is_compiling() is {s.compiling}, is_exporting() {s.exporting}, and no thread compiles",
        ),
    ),
    Check(
        id="CMP006",
        summary="no dispatch or function mode is active",
        why="Under a mode (fake tensors, profilers, debuggers) Dynamo skips frames, so they run eagerly.",
        fix="leave the mode's with block before compiling; modes are a thread's own",
        run=_one("modes", lambda s: bool(s.modes), lambda s: f"active modes: {', '.join(s.modes)}"),
    ),
    Check(
        id="CMP007",
        summary="no functorch transform is active",
        why="A leaked vmap or grad level changes what every operator computes.",
        fix="restart the process: an exception has passed through vmap or grad",
        run=_one(
            "functorch",
            lambda s: s.functorch_depth > 0,
            lambda s: f"{s.functorch_depth} functorch levels are open",
        ),
    ),
    Check(
        id="CMP008",
        summary="no compile context is left in this thread",
        why="A tracing context outside a compile makes the next compile think that it is nested.",
        fix="do not call this inside a compiled function; else restart the process",
        run=_one("tracing context", lambda s: s.tracing_context, lambda s: "a tracing context is current"),
    ),
    Check(
        id="CMP009",
        summary="no torch.jit trace is running",
        why="A compiled call inside torch.jit.trace raises.",
        fix="end the jit trace first",
        run=_one("jit trace", lambda s: s.jit_tracing, lambda s: "a torch.jit trace is running"),
    ),
    Check(
        id="CMP010",
        summary="the compile stance is the default, or what forbid_recompiles set",
        why="force_eager and eager_on_recompile run flex attention densely without an error; with any stance but "
        "fail_on_recompile a new shape compiles without a word.",
        fix='torch.compiler.set_stance("default"); find who set it',
        run=_stance,
    ),
    Check(
        id="CMP011",
        summary="no setting of Dynamo falls back to eager code",
        why="disable, suppress_errors and error_on_nested_fx_trace=False all give dense flex attention in silence.",
        fix="reset the setting, and unset TORCHDYNAMO_DISABLE and TORCHDYNAMO_SUPPRESS_ERRORS",
        run=_eager_settings,
    ),
    Check(
        id="CMP012",
        summary="the recompile limit has room for every graph",
        why="Past the limit torch runs the function eagerly: flex attention becomes dense, 276 GiB in one known run.",
        fix="apply dflash.compile.policy with room for them (Policy.with_room)",
        run=_limit,
    ),
    Check(
        id="CMP013",
        summary="the compile policy is in force in this thread",
        why="From torch 2.12 settings are a thread's own, and a package may set its own when it is imported.",
        fix="call dflash.compile.policy.apply() in this thread, after the imports",
        run=_policy,
    ),
    Check(
        id="CMP016",
        summary="flex attention is torch's own and not in its debug mode",
        why="The debug switch and replaced functions compute the dense scores.",
        fix="unset the debug switch; do not import the package that replaces flex_attention",
        run=_flex,
    ),
    Check(
        id="CMP026",
        summary="no frame override is left behind",
        why="A fullgraph call sets it for the process while it runs; two that overlap in two threads, or one that "
        "raises, leave it set, and from then on code after a graph break runs eagerly and says nothing.",
        fix="preflight resets it; compile whole functions (fullgraph=True), which it does not touch, or run one "
        "process a GPU",
        run=_one("frame override", lambda s: s.frame_override, lambda s: "Dynamo skips the frames below compiled ones"),
    ),
)


def _compiles(behaviour: Behaviour) -> Iterable[Problem]:
    if behaviour.compile_problem is not None:
        yield Problem(subject="torch.compile", message=f"torch.compile does nothing: {behaviour.compile_problem}")


def _captures_flex(behaviour: Behaviour) -> Iterable[Problem]:
    if behaviour.flex_problem is not None:
        yield Problem(subject="flex_attention", message=f"flex attention is not captured: {behaviour.flex_problem}")


def _hazard(hazard_id: str) -> Callable[[Behaviour], Iterable[Problem]]:
    def run(behaviour: Behaviour) -> Iterable[Problem]:
        for hazard in behaviour.hazards:
            if hazard.id == hazard_id and hazard.present and not hazard.handled:
                yield Problem(
                    subject=hazard.name,
                    message=f"{hazard.name}: {hazard.found}",
                    expected=f"handled by {hazard.handled_by}",
                    observed=hazard.found,
                )

    return run


BEHAVIOUR_CHECKS: tuple[Check[Behaviour], ...] = (
    Check(
        id="CMP017",
        summary="a compiled call reaches the compiler",
        why="Where it does not, everything runs eagerly and says nothing.",
        fix="see the stance (CMP010), the settings (CMP011) and the environment (CMP014)",
        run=_compiles,
    ),
    Check(
        id="CMP018",
        summary="flex attention is captured as its operator",
        why="Only the operator becomes a kernel; anything else in the graph is the dense computation.",
        fix="repair the torch installation (uv sync --locked --reinstall-package torch)",
        run=_captures_flex,
    ),
    Check(
        id="CMP019",
        summary="a warm call works while another thread traces",
        why="Up to torch 2.13 all threads share one FX tracing flag: 224,466 of 239,987 warm calls raised beside a "
        "compile.",
        fix="apply dflash.compile.policy; where it is applied and this still fails, run one process a GPU",
        run=_hazard("CMP019"),
    ),
    Check(
        id="CMP020",
        summary="the policy can be put in force in another thread",
        why="From torch 2.12 a thread starts with torch's defaults, whose limit of 8 gives dense attention.",
        fix="call policy.apply in each thread (PolicyThread); where it has no effect, run one process a GPU",
        run=_hazard("CMP020"),
    ),
    Check(
        id="CMP021",
        summary="no thread takes the uncompiled branch because another one compiles",
        why="From torch 2.13 is_compiling() is true everywhere meanwhile, and transformers then calls flex attention "
        "uncompiled.",
        fix="call dflash.compile.dense.install_tripwire(), which makes that an error",
        run=_hazard("CMP021"),
    ),
    Check(
        id="CMP022",
        summary="a backward is compiled together with its forward",
        why="Compiled at its first call it runs in the device's one autograd thread, which deadlocks with another "
        "thread's compile: 4 of 4 processes hung.",
        fix="apply dflash.compile.policy; where it is applied and this still fails, run one process a GPU",
        run=_hazard("CMP022"),
    ),
    Check(
        id="CMP023",
        summary="inductor's symbolic trace is behind us",
        why="While any thread is in symbolic_trace, a module call of every other thread raises NameError.",
        fix="apply dflash.compile.policy before other threads start",
        run=_hazard("CMP023"),
    ),
    Check(
        id="CMP025",
        summary="static shapes stay static beside other threads",
        why="torch 2.11 keeps dynamic=False as a setting of the process: a call that ends in another thread takes it "
        "away from a compile, which then makes a slower graph that no cache holds.",
        fix="apply dflash.compile.policy; where it is applied and this still fails, run one process a GPU",
        run=_hazard("CMP025"),
    ),
)
