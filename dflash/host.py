"""What the trainer needs of this machine besides packages: a C++ compiler, a cache directory, disk, its imports.

In: the environment variables, PATH and the file system. Out: a frozen ``HostFacts``. Nothing is created, compiled or
imported, and nothing is judged (``doctor.py`` does).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from cache_tools.paths import CACHE_VARIABLE, default_cache_dir
from envguard.errors import ProbeError
from envguard.probes.gpu import Gpu, gpus

OWN_PACKAGES = ("dflash", "envguard", "cache_tools")
CLI_PACKAGES = ("typer", "rich")
"""Without them the command line cannot start, or cannot draw."""

PATIENCE = 30.0  # seconds for the compiler to tell its version


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheDir:
    """The directory that torch.compile writes to; until it exists, the facts are those of its nearest parent."""

    path: Path
    configured: str | None
    """The value of ``TORCHINDUCTOR_CACHE_DIR``; None where it is unset."""
    existing: Path
    """``path``, or the nearest parent that exists."""
    is_directory: bool
    is_writable: bool
    owner: int
    """User id of ``existing``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """This machine, as the running user sees it."""

    user: int
    compiler: str
    """The C++ compiler that inductor will call: ``$CXX``, else the platform's usual one."""
    compiler_path: str | None
    """Where PATH has it; None where it has not."""
    compiler_problem: str | None
    """Why it does not tell its version, which inductor asks it for at each start."""
    other_compiler: str | None
    """Another C++ compiler on PATH that CXX could name."""
    cache: CacheDir
    free_bytes: tuple[tuple[Path, int], ...]
    """Free space at the cache directory and at the current directory."""
    origins: tuple[tuple[str, Path | None], ...]
    """Where ``import`` would find each of our packages; None where nowhere."""
    source: Path
    """The directory that holds the code that is running."""
    gpus: tuple[Gpu, ...]
    """As the driver lists them, torch not asked."""
    gpu_problem: str | None
    """Why the driver, which is there, could not be asked."""
    broken_imports: tuple[tuple[str, str], ...]
    """Packages of the command line that cannot be found or whose code is not there, with the reason."""


def look_at_host(environ: Mapping[str, str] = os.environ, *, platform: str = sys.platform) -> HostFacts:
    """Gather the facts."""
    usual, other = ("clang++", "g++") if platform == "darwin" else ("g++", "clang++")
    compiler = environ.get("CXX", usual)
    path = environ.get("PATH", os.defpath)
    found = shutil.which(compiler, path=path)
    cache = look_at_cache_dir(environ)
    here = Path.cwd()
    devices, problem = _ask_for_gpus()
    return HostFacts(
        user=os.getuid(),
        compiler=compiler,
        compiler_path=found,
        compiler_problem=_why_it_fails(found) if found else None,
        other_compiler=next((name for name in (usual, other) if shutil.which(name, path=path)), None),
        cache=cache,
        free_bytes=tuple((place, shutil.disk_usage(place).free) for place in dict.fromkeys((cache.existing, here))),
        origins=tuple((name, _origin(name)) for name in OWN_PACKAGES),
        source=Path(__file__).resolve().parent.parent,
        gpus=devices,
        gpu_problem=problem,
        broken_imports=tuple((name, why) for name in CLI_PACKAGES if (why := _why_broken(name)) is not None),
    )


def _why_it_fails(compiler: str) -> str | None:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"{compiler} --version ends with exit code {done.returncode}" if done.returncode else None


def _ask_for_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    try:
        return gpus(), None
    except ProbeError as error:
        return (), str(error)


def look_at_cache_dir(environ: Mapping[str, str]) -> CacheDir:
    """The compile cache directory of ``environ``."""
    path = Path.cwd() if environ.get(CACHE_VARIABLE) == "" else default_cache_dir(environ)
    existing = next(each for each in (path, *path.parents) if os.path.exists(each))  # False where one may not look
    return CacheDir(
        path=path,
        configured=environ.get(CACHE_VARIABLE),
        existing=existing,
        is_directory=existing.is_dir(),
        is_writable=os.access(existing, os.W_OK | os.X_OK),
        owner=existing.stat().st_uid,
    )


def _origin(package: str) -> Path | None:
    spec = PathFinder.find_spec(package)
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    return next((Path(place).resolve() for place in places if place is not None), None)


def _why_broken(package: str) -> str | None:
    spec = PathFinder.find_spec(package)
    if spec is None:
        return "it is not on sys.path"
    if spec.origin is None:
        return f"{', '.join(spec.submodule_search_locations or ())} has no __init__.py"
    return None
