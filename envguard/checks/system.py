"""CUD: the machine's CUDA beside that of the environment. In: an ``Inspection``. Out: problems.

``cuda.py`` judges what is installed in the environment; this is about libraries, compiler and GPUs around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from envguard.findings import Check, Problem, Skip
from envguard.inspection import Inspection

if TYPE_CHECKING:
    from envguard.probes.libraries import Exposed


def _no_cuda(case: Inspection) -> Skip | None:
    torch = case.observation.torch
    if torch is None or torch.cuda is None:
        return Skip(reason="the installed torch is not built for CUDA")
    return None


def _exposed(case: Inspection) -> Iterable[Problem] | Skip:
    case.around.demand("libraries")
    if skip := _no_cuda(case):
        return skip
    libraries = case.around.libraries
    if libraries is None:
        return Skip(reason="the system's libraries are not looked at in the fast tier")
    if not libraries.own:
        return Skip(reason="the environment brings no CUDA libraries of its own")
    inside = f"{case.observation.interpreter.prefix}/"
    places: dict[tuple[str, str], list[Exposed]] = {}
    for each in libraries.exposed:
        if each.name in libraries.own and not each.path.startswith(inside):
            places.setdefault((each.by, each.path.rpartition("/")[0]), []).append(each)
    return [_offered(found) for found in places.values()]


def _offered(found: Sequence[Exposed]) -> Problem:
    """One place offers one release, whose parts come together."""
    first, others = found[0], len(found) - 1
    more = f"; likewise {others} more of that directory" if others else ""
    return Problem(
        subject=first.name,
        message=f"{first.by} offers {first.path} for the {first.name} that the environment brings itself{more}",
        observed=", ".join(each.path for each in found),
        fix=f"unset {first.by}" if first.by != "ldconfig" else None,
    )


def _toolkit(case: Inspection) -> Iterable[Problem] | Skip:
    case.around.demand("toolkit")
    torch, toolkit = case.observation.torch, case.around.toolkit
    if not case.profile.jit:
        return Skip(reason=f"profile {case.profile.name} does not compile CUDA code (jit)")
    if torch is None or torch.cuda is None:
        return Skip(reason="the installed torch is not built for CUDA")
    if not case.around.was_toolkit_sought:
        return Skip(reason="nvcc is not looked for in the fast tier")
    wanted = torch.cuda.partition(".")[0]
    if toolkit is None:
        missing = f"profile {case.profile.name} compiles CUDA code, and there is no nvcc in CUDA_HOME or on PATH"
        return (Problem(subject="nvcc", message=missing, expected=torch.cuda),)
    if toolkit.version.partition(".")[0] == wanted:
        return ()
    problem = Problem(
        subject="nvcc",
        message=f"{toolkit.nvcc} is of CUDA {toolkit.version}, and torch was built with CUDA {torch.cuda}",
        expected=torch.cuda,
        observed=toolkit.version,
    )
    return (problem,)


def _smoke(case: Inspection) -> Iterable[Problem] | Skip:
    if skip := _no_cuda(case):
        return skip
    if case.observation.driver is None:
        return Skip(reason="this machine has no NVIDIA driver")
    smoke = case.around.smoke
    if smoke is None:
        return Skip(reason="torch is only started in the gpu tier")
    problems = [Problem(subject=what, message=f"on the GPU, {what} fails: {why}") for what, why in smoke.failures]
    if not smoke.available and not problems:
        why = "torch.cuda.is_available() is false although there is a driver"
        return (Problem(subject="torch", message=why, expected="True", observed="False"),)
    return problems + [
        Problem(
            subject=name,
            message=f"{name} has compute capability {capability}, and torch holds code for {', '.join(smoke.archs)}",
            expected=capability,
            observed=", ".join(smoke.archs),
        )
        for name, capability in dict.fromkeys(smoke.devices)
        if not runs_on(capability, smoke.archs)
    ]


def runs_on(capability: str, archs: Sequence[str]) -> bool:
    """Whether code for one of ``archs`` runs on a GPU of ``capability``.

    Machine code (``sm_86``) runs on later GPUs of the same major version, ``sm_90a`` on exactly its own; PTX
    (``compute_90``) is compiled for any later GPU. (NVIDIA: CUDA C++ Programming Guide, Compute Capability.)
    """
    have = tuple(map(int, capability.split(".")))
    for arch in archs:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if found is None:
            continue
        built = (int(found[2]), int(found[3]))
        if built == have or (not found[4] and built <= have and (found[1] == "compute" or built[0] == have[0])):
            return True
    return False


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="CUD004",
        summary="no cuDNN, CUDA runtime or NCCL of the system stands before the environment's own",
        why="A library in LD_LIBRARY_PATH or LD_PRELOAD wins over the bundled one, and cuDNN loads its parts by name, "
        "also from the loader's cache: parts of two releases then meet in one process.",
        fix="unset LD_LIBRARY_PATH and LD_PRELOAD; take a system cuDNN or NCCL out of ldconfig's directories",
        run=_exposed,
        severity="warn",
        tier="standard",
        example="LD_LIBRARY_PATH offers /opt/libcudnn.so.9 for the libcudnn.so.9 that the environment brings itself",
    ),
    Check(
        id="CUD005",
        summary="nvcc is of the CUDA release that torch was built with, where the profile compiles CUDA code",
        why="An extension that was compiled with another major release needs libraries that the environment does not "
        "have, or fails to build at all.",
        fix="set CUDA_HOME to a toolkit of the same major release",
        run=_toolkit,
        severity="warn",
        tier="standard",
        example="/usr/local/cuda/bin/nvcc is of CUDA 12.8, and torch was built with CUDA 13.0",
    ),
    Check(
        id="CUD006",
        summary="torch computes on the GPU: architecture, a product of matrices, flex attention",
        why="A build without code for the GPU's architecture, a compiler that is missing or a driver that half works "
        "show only when something runs.",
        fix="use a build of torch that supports the GPU; read the message of what failed",
        run=_smoke,
        tier="gpu",
        example="Tesla V100 has compute capability 7.0, and torch holds code for sm_75, sm_80, sm_90",
    ),
)
