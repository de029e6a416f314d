"""The observation: what an environment is, as one frozen value, made without importing torch.

In: an interpreter (the running one by default). Out: an ``Observation`` that every check judges and ``freeze`` writes.
It reads files and the driver; it has no opinion and knows no policy. What is damaged becomes a value in it (a
distribution's ``problem``, ``torch_problem``), so that a broken environment can still be judged.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envguard.errors import ProbeError
from envguard.probes import gpu, interpreter
from envguard.probes.contents import Contents
from envguard.probes.distributions import Distribution, read_installed
from envguard.probes.gpu import Gpu
from envguard.probes.interpreter import Interpreter
from envguard.probes.path import find_launchers
from envguard.probes.torch_build import TorchBuild, read_torch_build

Fact = TypeVar("Fact")

RELEVANT_VARIABLES = re.compile(
    r"PYTHON(PATH|HOME|NOUSERSITE|PYCACHEPREFIX|OPTIMIZE)|LD_(LIBRARY_PATH|PRELOAD)|CONDA_PREFIX|CUDA_\w+|CUBLAS_\w+|"
    r"NVIDIA_TF32_OVERRIDE|(TORCH|PYTORCH|TORCHINDUCTOR|TRITON|FLA|NCCL|OMP|MKL)_?\w*|ATEN_CPU_CAPABILITY"
)
"""Variables that change what is imported or computed. Nothing that carries a credential matches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One environment at one moment; no field holds a time."""

    interpreter: Interpreter
    system: str
    """Operating system and machine, such as ``linux x86_64``."""
    distributions: tuple[Distribution, ...]
    directories: tuple[str, ...]
    """Importable directories at the top of site-packages."""
    programs: frozenset[str]
    """Names in the environment's ``bin``."""
    torch: TorchBuild | None
    torch_problem: str | None
    """Why the build could not be read although torch is there."""
    driver: str | None
    """NVIDIA driver version; None where there is no driver."""
    driver_problem: str | None
    """Why the version could not be read although a driver seems to be there."""
    gpus: tuple[Gpu, ...] | None
    """None where they were not asked for."""
    variables: tuple[tuple[str, str], ...]
    """The relevant environment variables of this process, sorted."""
    contents: Contents | None
    """The installed files against RECORD; None in the fast tier."""
    launchers: tuple[tuple[str, str], ...] = ()
    """(name, path) of every launcher of workers that PATH finds."""
    is_conda: bool = False
    """Whether conda keeps its records in the prefix."""
    user_site_names: tuple[str, ...] | None = None
    """What lies in the user's own site-packages, where they are importable and exist."""


def observe(
    python: Path | None = None, *, with_gpus: bool = False, environ: Mapping[str, str] | None = None
) -> Observation:
    """Observe the running interpreter's environment, or that of ``python``.

    ``with_gpus`` initialises CUDA in this process (0.25 s with one H200, see ``probes.gpu``). ``environ`` defaults to
    the process environment.

    Raises:
        UsageError: ``python`` is no interpreter.
        ProbeError: site-packages or bin cannot be listed, or ``with_gpus`` and the driver refuses.
    """
    judged = interpreter.find_interpreter(python)
    installed = read_installed(judged.site_packages)
    torch, torch_problem = _probe(lambda: read_torch_build(judged.site_packages))
    driver, driver_problem = _probe(gpu.driver_version)
    variables = os.environ if environ is None else environ
    return Observation(
        interpreter=judged,
        system=f"{sys.platform} {platform.machine()}",
        distributions=installed.distributions,
        directories=installed.directories,
        programs=_list_programs(judged.prefix / "bin"),
        torch=torch,
        torch_problem=torch_problem,
        driver=driver,
        driver_problem=driver_problem,
        gpus=gpu.gpus() if with_gpus else None,
        variables=tuple(sorted((k, v) for k, v in variables.items() if RELEVANT_VARIABLES.fullmatch(k))),
        contents=None,
        launchers=find_launchers(variables, judged.prefix),
        is_conda=(judged.prefix / "conda-meta").is_dir(),
        user_site_names=None if judged.user_site is None else _list_user_site(judged.user_site),
    )


def _list_programs(directory: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError as error:
        raise ProbeError(f"{directory} cannot be listed ({error.strerror}): run uv sync --locked") from error


def _list_user_site(directory: Path) -> tuple[str, ...] | None:
    try:
        return tuple(sorted(os.listdir(directory)))
    except OSError:  # what cannot be listed cannot be imported from
        return None


def _probe(read: Callable[[], Fact]) -> tuple[Fact | None, str | None]:
    """The fact, or why it cannot be read."""
    try:
        return read(), None
    except ProbeError as error:
        return None, str(error)
