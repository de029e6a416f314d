"""What torch.compile depends on outside torch: switches of the environment, and triton's assembler for this GPU.

In: environment variables, the files of the installed triton, the GPUs as the driver lists them. Out: ``MachineState``
and its checks (CMP014, CMP015), cheap enough for ``doctor``: no torch import. Compiler, cache directory and disk are
doctor's own (DFL001 to DFL003).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from envguard.errors import ProbeError
from envguard.findings import Check, Problem, Skip
from envguard.probes.gpu import Gpu, gpus

SWITCHES: dict[str, str] = {
    "TORCHDYNAMO_DISABLE": "torch.compile does nothing: every step is eager, and flex attention dense",
    "TORCH_COMPILE_DISABLE": "torch.compile does nothing: every step is eager, and flex attention dense",
    "TORCHDYNAMO_SUPPRESS_ERRORS": "a failed compile runs eagerly without a word, and flex attention dense",
    "TRITON_INTERPRET": "triton kernels run in Python, thousands of times slower",
    "PYTORCH_JIT": "TorchScript is changed under torch's own operators",
}
"""Variables that turn compiling off or into something else; which values do is ``is_on``."""

BLACKWELL = (10, 0)
"""From this capability on triton assembles with a ptxas of its own name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineState:
    """Facts of the process's environment."""

    switches: tuple[tuple[str, str], ...]
    """The variables of ``SWITCHES`` that are set to something that matters."""
    triton: Path | None
    """Directory of the installed triton; None where there is none."""
    assemblers: tuple[str, ...]
    """Executable ``ptxas*`` files: triton's own, and those that ``TRITON_PTXAS*_PATH`` names."""
    capabilities: tuple[tuple[int, int], ...]
    """Of the GPUs; () on a machine without, or where the driver does not answer (DFL006)."""


def look_at_machine(environ: Mapping[str, str] = os.environ, devices: Sequence[Gpu] | None = None) -> MachineState:
    """Gather the facts; where ``devices`` are not given the driver is asked (which initialises CUDA)."""
    spec = PathFinder.find_spec("triton")
    triton = Path(spec.origin).parent if spec and spec.origin else None
    found = list((triton / "backends/nvidia/bin").glob("ptxas*")) if triton else []
    assemblers = {path.name for path in found if os.access(path, os.X_OK)}
    for variable, name in (("TRITON_PTXAS_PATH", "ptxas"), ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas-blackwell")):
        if variable in environ:
            usable = os.access(environ[variable], os.X_OK)
            assemblers = assemblers | {name} if usable else assemblers - {name}
    return MachineState(
        switches=tuple((name, environ[name]) for name in SWITCHES if is_on(name, environ.get(name, ""))),
        triton=triton,
        assemblers=tuple(sorted(assemblers)),
        capabilities=_capabilities(_list_gpus() if devices is None else devices),
    )


def is_on(name: str, value: str) -> bool:
    """Whether a variable of ``SWITCHES`` has its effect; torch takes TORCHDYNAMO_SUPPRESS_ERRORS=0 for yes."""
    off = {"PYTORCH_JIT": ("", "1"), "TORCHDYNAMO_SUPPRESS_ERRORS": ("",)}
    return value not in off.get(name, ("", "0"))


def _list_gpus() -> Sequence[Gpu]:
    try:
        return gpus()
    except ProbeError:  # doctor's DFL006 tells it
        return ()


def _capabilities(devices: Sequence[Gpu]) -> tuple[tuple[int, int], ...]:
    return tuple((int(major), int(minor)) for major, minor in (gpu.capability.split(".") for gpu in devices))


def _switches(machine: MachineState) -> Iterable[Problem]:
    for name, value in machine.switches:
        yield Problem(
            subject=name,
            message=f"{name}={value}: {SWITCHES[name]}",
            expected="unset",
            observed=value,
            fix=f"unset {name}",
        )


def _assembler(machine: MachineState) -> Iterable[Problem] | Skip:
    if not machine.capabilities:
        return Skip(reason="no GPU: triton assembles nothing")
    if machine.triton is None:
        return [Problem(subject="triton", message="triton is not installed, and inductor writes its GPU kernels in it")]
    return [
        Problem(
            subject=name,
            message=f"triton has no executable {name}, which a GPU of capability {major}.{minor} needs",
            expected=str(machine.triton / "backends/nvidia/bin" / name),
        )
        for name, (major, minor) in sorted({assembler_for(each): each for each in machine.capabilities}.items())
        if name not in machine.assemblers
    ]


def assembler_for(capability: tuple[int, int]) -> str:
    """The file that triton calls for this GPU (triton/backends/nvidia/compiler.py, ``get_ptxas``)."""
    return "ptxas-blackwell" if capability >= BLACKWELL else "ptxas"


CHECKS: tuple[Check[MachineState], ...] = (
    Check(
        id="CMP014",
        summary="no environment variable turns compiling off",
        why="torch reads them once, when it is imported, and falls back to eager code without an error.",
        fix="unset the variable",
        run=_switches,
    ),
    Check(
        id="CMP015",
        summary="triton and its assembler for these GPUs are there",
        why="Without ptxas no kernel can be built; Blackwell GPUs (sm_100, sm_120) need one of their own.",
        fix="reinstall triton (uv sync --locked --reinstall-package triton), or set TRITON_PTXAS_PATH or "
        "TRITON_PTXAS_BLACKWELL_PATH to an assembler of CUDA 12.8 or later",
        run=_assembler,
    ),
)
