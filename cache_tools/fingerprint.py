"""What a compile cache depends on, beyond torch's own keys: one graded list, observed without importing torch.

In: an environment. Out: a ``Fingerprint``, and a ``Comparison`` of two, field by field. The grades come from
experiments on torch 2.11: fatal means wrong results, a crash or no hit at all; degrading means fewer hits or slower
code. Left out since they change nothing: host name, cache path, working directory, HOME, model path and line, compile
threads, logging and remote-cache switches, times. What only torch knows (digests of its configs) is not here.
"""

from __future__ import annotations

import enum
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cache_tools.vec_isa import vec_isa
from envguard.errors import CheckCrashed
from envguard.probes import gpu, torch_build

KEY_VERSION = 1
"""Raise it when a field is added, removed or observed in another way."""


class Grade(enum.StrEnum):
    """How bad a difference is; ``GPU`` is fatal where the snapshot holds GPU kernels and degrading elsewhere."""

    FATAL = "fatal"
    GPU = "gpu"
    DEGRADING = "degrading"


class Verdict(enum.StrEnum):
    """The outcome for one field."""

    SAME = "same"
    DEGRADING = "degrading"
    FATAL = "fatal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One input of the fingerprint."""

    name: str
    grade: Grade
    why: str
    """What a difference does."""


_KEYS = "it is part of every key: nothing would hit"
_NATIVE = "shared objects are linked against it: they may not load"
_KERNELS = "GPU kernels are compiled for it"
INPUTS: tuple[Input, ...] = (
    Input(name="torch_version", grade=Grade.FATAL, why=_KEYS),
    Input(name="torch_git", grade=Grade.FATAL, why="same version, other source: hits would be stale"),
    Input(name="torch_cuda", grade=Grade.FATAL, why=_KEYS + " on a GPU, and libtorch differs"),
    Input(name="torch_hip", grade=Grade.FATAL, why=_KEYS + " on a GPU, and libtorch differs"),
    Input(name="python", grade=Grade.FATAL, why="entries hold pickles and extension modules of one minor version"),
    Input(name="machine", grade=Grade.FATAL, why="shared objects hold its instructions"),
    Input(
        name="cpu_isa",
        grade=Grade.FATAL,
        why="kernels are generated for one vector width, which torch's key leaves out: wrong numbers or SIGBUS",
    ),
    Input(name="cpu_isa_flags", grade=Grade.FATAL, why="kernels may use instructions that this processor lacks"),
    Input(name="libc", grade=Grade.FATAL, why=_NATIVE),
    Input(name="libstdcxx", grade=Grade.FATAL, why=_NATIVE),
    Input(name="triton", grade=Grade.GPU, why=_KEYS + " on a GPU"),
    Input(name="gpu_name", grade=Grade.GPU, why=_KEYS),
    Input(name="gpu_capability", grade=Grade.GPU, why=_KERNELS),
    Input(name="gpu_sm_count", grade=Grade.GPU, why=_KERNELS + ": it is baked into their launch sizes"),
    Input(name="driver", grade=Grade.DEGRADING, why="kernels may be compiled again from PTX"),
    Input(name="threads", grade=Grade.DEGRADING, why="generated C++ has the number of threads baked in: slower"),
    Input(name="compiler", grade=Grade.DEGRADING, why="C++ kernels are built again"),
    Input(name="include_paths", grade=Grade.DEGRADING, why="the key of a C++ kernel holds them: it is built again"),
    Input(name="inductor_env", grade=Grade.DEGRADING, why="settings of inductor are part of the keys: fewer hits"),
)

_IGNORED_ENV = frozenset(
    f"TORCHINDUCTOR_{name}"
    for name in (
        "AUTOGRAD_CACHE",
        "AUTOGRAD_REMOTE_CACHE",
        "AUTOTUNE_REMOTE_CACHE",
        "BUNDLED_AUTOTUNE_REMOTE_CACHE",
        "CACHE_DIR",
        "COMPILE_THREADS",
        "CUTLASS_DIR",
        "FORCE_DISABLE_CACHES",
        "FX_GRAPH_CACHE",
        "FX_GRAPH_REMOTE_CACHE",
        "REDIS_HOST",
        "REDIS_PORT",
        "REDIS_URL",
        "WORKER_START",
        "WORKER_START_METHOD",
    )
)
_EXTRA_ENV = ("TORCH_COMPILE_CACHE_KEY_TAG",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """One value for each input; None where the machine has no such thing."""

    key_version: int
    values: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldComparison:
    """One input of a snapshot beside the same input here."""

    name: str
    verdict: Verdict
    snapshot: str | None
    here: str | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every field, in the order of ``INPUTS``."""

    fields: tuple[FieldComparison, ...]

    @property
    def fatal(self) -> tuple[FieldComparison, ...]:
        """Differences that forbid a restore."""
        return tuple(field for field in self.fields if field.verdict is Verdict.FATAL)

    @property
    def degrading(self) -> tuple[FieldComparison, ...]:
        """Differences that cost hits or speed."""
        return tuple(field for field in self.fields if field.verdict is Verdict.DEGRADING)


def compare(snapshot: Fingerprint, here: Fingerprint, *, gpu_kernels: bool) -> Comparison:
    """Judge restoring a cache made under ``snapshot`` into ``here``; ``gpu_kernels``: the snapshot holds some."""
    if snapshot.key_version != here.key_version:
        versions = f"{snapshot.key_version}", f"{here.key_version}"
        why = "the two describe a machine in different terms: take the snapshot again with this version"
        field = FieldComparison(
            name="key_version", verdict=Verdict.FATAL, snapshot=versions[0], here=versions[1], why=why
        )
        return Comparison(fields=(field,))
    return Comparison(fields=tuple(_compare_one(one, snapshot, here, gpu_kernels) for one in INPUTS))


def _compare_one(one: Input, snapshot: Fingerprint, here: Fingerprint, gpu_kernels: bool) -> FieldComparison:
    before, now = snapshot.values[one.name], here.values[one.name]
    fatal = one.grade is Grade.FATAL or (one.grade is Grade.GPU and gpu_kernels)
    different = Verdict.FATAL if fatal else Verdict.DEGRADING
    verdict = Verdict.SAME if before == now else different
    return FieldComparison(name=one.name, verdict=verdict, snapshot=before, here=now, why=one.why)


def observe(site_packages: Path | None = None, environ: Mapping[str, str] = os.environ) -> Fingerprint:
    """The fingerprint of this interpreter, machine and environment (about 20 ms; torch is not imported).

    On a GPU machine it initialises CUDA in this process: fork nothing that uses CUDA afterwards.

    Raises:
        CheckCrashed: a fact cannot be read (its probe's message says which).
    """
    packages = site_packages or Path(sysconfig.get_path("purelib"))
    build = torch_build.read_torch_build(packages)
    try:
        isa = vec_isa(environ)
    except OSError as error:
        raise CheckCrashed(
            f"{error.filename} cannot be read ({error.strerror}): the CPU's features are unknown"
        ) from error
    devices = gpu.gpus()
    values: dict[str, str | None] = {
        "torch_version": build.version if build else None,
        "torch_git": build.git_version if build else None,
        "torch_cuda": build.cuda if build else None,
        "torch_hip": build.hip if build else None,
        "python": f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
        "machine": f"{sys.platform} {platform.machine()}",
        "cpu_isa": f"{isa.name} {isa.bits}",
        "cpu_isa_flags": isa.flags,
        "libc": _libc(),
        "libstdcxx": _libstdcxx(),
        "triton": _distribution_version("triton", packages),
        "gpu_name": _distinct(devices, lambda device: device.name),
        "gpu_capability": _distinct(devices, lambda device: device.capability),
        "gpu_sm_count": _distinct(devices, lambda device: str(device.sm_count)),
        "driver": gpu.driver_version(),
        "threads": environ.get("OMP_NUM_THREADS") or str(_usable_cores()),
        "compiler": _compiler(environ),
        "include_paths": _digest(f"{packages}\0{sysconfig.get_path('include')}"),
        "inductor_env": _inductor_env(environ),
    }
    return Fingerprint(key_version=KEY_VERSION, values=values)


def _distinct(devices: tuple[gpu.Gpu, ...], read: Callable[[gpu.Gpu], str]) -> str | None:
    return "; ".join(sorted({read(device) for device in devices})) or None


def _distribution_version(name: str, packages: Path) -> str | None:
    found = next(iter(importlib.metadata.distributions(name=name, path=[str(packages)])), None)
    return found.version if found else None


def _libc() -> str | None:
    return os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}) else None


def _libstdcxx() -> str | None:
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    folders = (
        f"{sys.base_prefix}/lib",
        f"/usr/lib/{multiarch}",
        f"/lib/{multiarch}",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
    )
    found = next((path for folder in folders if (path := Path(folder, "libstdc++.so.6")).exists()), None)
    return found.resolve().name if found else None


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compiler(environ: Mapping[str, str]) -> str | None:
    """First line of the version text of the compiler that inductor takes; None where there is none."""
    command = environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(command) is None:
        return None
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckCrashed(f"the C++ compiler {command} does not tell its version ({error}): set CXX") from error
    return done.stdout.partition("\n")[0] or None


def _inductor_env(environ: Mapping[str, str]) -> str | None:
    """The variables that set an inductor option; a value may be a secret, so a long one is stored as its digest."""
    names = [name for name in environ if name.startswith("TORCHINDUCTOR_") and name not in _IGNORED_ENV]
    names += [name for name in _EXTRA_ENV if name in environ]
    shown = (value if len(value := environ[name]) <= 8 else f"sha256:{_digest(value)}" for name in sorted(names))
    return " ".join(f"{name}={value}" for name, value in zip(sorted(names), shown, strict=True)) or None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
