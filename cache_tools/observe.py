"""Observing the fingerprint of this interpreter, machine and environment, without importing torch.

In: a site-packages directory and environment variables. Out: a ``Fingerprint``, in about 30 ms; what only torch knows
stays unknown in it (told.py). It judges nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from cache_tools import installed
from cache_tools.fingerprint import KEY_VERSION, MAX_VALUE, TOLD, Fingerprint
from cache_tools.vec_isa import vec_isa
from envguard.errors import CheckCrashed
from envguard.probes import gpu, torch_build
from envguard.probes.programs import is_command

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


def observe(site_packages: Path | None = None, environ: Mapping[str, str] = os.environ) -> Fingerprint:
    """The fingerprint of this interpreter, machine and environment (about 20 ms; torch is not imported).

    On a GPU machine it initialises CUDA in this process: fork nothing that uses CUDA afterwards.

    Raises:
        CheckCrashed: a fact cannot be read; the message says which.
        ProbeError: torch's version file or the NVIDIA driver cannot be read.
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
        "machine": f"{sys.platform} {os.uname().machine}",
        "cpu_isa": f"{isa.name} {isa.bits}",
        "cpu_isa_flags": isa.flags,
        "libc": _libc(),
        "libstdcxx": _libstdcxx(),
        "triton": installed.version("triton", packages),
        "gpu_name": _distinct(devices, lambda device: device.name),
        "gpu_capability": _distinct(devices, lambda device: device.capability),
        "gpu_sm_count": _distinct(devices, lambda device: str(device.sm_count)),
        "gpu_indices": " ".join(str(device.index) for device in devices) or None,
        "libtorch": _libtorch(packages),
        "driver": gpu.driver_version(),
        "threads": environ.get("OMP_NUM_THREADS") or str(_usable_cores()),
        "compiler": _compiler(environ),
        "include_paths": _digest(f"{packages}\0{sysconfig.get_path('include')}"),
        "inductor_env": _inductor_env(environ),
        **dict.fromkeys(TOLD),
    }
    return Fingerprint(key_version=KEY_VERSION, values={name: _plain(value) for name, value in values.items()})


def _plain(value: str | None) -> str | None:
    """``value``, or its digest where it could not stand in a manifest: ``OMP_NUM_THREADS=8\\r`` from a Windows file."""
    fits = value is None or (value.isprintable() and len(value) <= MAX_VALUE)
    return value if value is None or fits else f"sha256:{_digest(value)}"


def _distinct(devices: tuple[gpu.Gpu, ...], read: Callable[[gpu.Gpu], str]) -> str | None:
    return "; ".join(sorted({read(device) for device in devices})) or None


def _libtorch(packages: Path) -> str | None:
    """Digest over name, recorded hash and real size of torch's libraries; no library is read (they have 1 GB).

    None where torch is not installed, or has no RECORD (a development build).
    """
    record = installed.read_text("torch", "RECORD", packages)
    if not record:
        return None
    inside = f"\n{record}".split("\ntorch/lib/")[1:]  # a fifth of the time of looking at each of 12,000 lines
    lines = sorted(f"torch/lib/{line}" for line in (part.partition("\n")[0] for part in inside) if ".so" in line)
    seen: list[str] = []
    for line in lines:
        file = packages / line.partition(",")[0]
        seen.append(f"{line} {file.stat().st_size if file.is_file() else 'absent'}")
    return _digest("\n".join(seen))


def _libc() -> str | None:
    return os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}) else None


def _libstdcxx() -> str | None:
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
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
    if not is_command(command):
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
    shown = (
        value if len(value := environ[name]) <= 8 and value.isprintable() else f"sha256:{_digest(value)}"
        for name in sorted(names)
    )
    return " ".join(f"{name}={value}" for name, value in zip(sorted(names), shown, strict=True)) or None


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]
