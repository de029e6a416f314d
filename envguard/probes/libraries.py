"""CUDA libraries that the system puts in front of those that the environment brings.

In: environment variables, and the loader's cache through ``ldconfig -p``. Out: ``Exposed`` libraries, and the names of
the environment's own. Names are cut after the major version, as the loader compares them. Nothing is loaded.
Of the loader's cache only cuDNN is told: torch's own RPATH comes before the cache, and it is only cuDNN that loads its
parts by name alone (pytorch#188892); a CUDA toolkit beside the environment is no fault.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from envguard.errors import ProbeError
from envguard.frozen import Frozen
from envguard.probes.programs import find_command

TIMEOUT = 10.0

_NAME = re.compile(r"(lib(?:cudnn|cudart|nccl)\w*)\.so\.(\d+)")
_CACHED = re.compile(r"^\s*(lib\S+) \([^)]*\) => (\S+)$", re.MULTILINE)
_OWN_DIRECTORIES = ("nvidia/*/lib", "torch/lib")


class Exposed(Frozen):
    """One library that the loader would find outside the environment."""

    name: str
    """Such as ``libcudnn.so.9``."""
    path: str
    by: str
    """``LD_PRELOAD``, ``LD_LIBRARY_PATH`` or ``ldconfig``."""


def short_name(file_name: str) -> str | None:
    """``libcudnn.so.9`` for ``libcudnn.so.9.19.0``; None for any other library."""
    found = _NAME.match(file_name)
    return f"{found[1]}.so.{found[2]}" if found else None


def own_libraries(site_packages: Path) -> frozenset[str]:
    """Short names of the CUDA libraries that the environment's wheels brought."""
    names = (
        short_name(path.name) for each in _OWN_DIRECTORIES for path in site_packages.glob(f"{each}/lib[cn][ucd]*.so*")
    )
    return frozenset(name for name in names if name)


def exposed_libraries(environ: Mapping[str, str]) -> tuple[Exposed, ...]:
    """What the loader's variables and its cache offer, in the order in which the loader looks.

    Raises:
        ProbeError: ldconfig is there and does not answer.
    """
    return (*_preloaded(environ), *_searched(environ), *_cached(environ))


def _preloaded(environ: Mapping[str, str]) -> Iterator[Exposed]:
    for path in re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")):
        if name := short_name(os.path.basename(path)):
            yield Exposed(name=name, path=path, by="LD_PRELOAD")


def _searched(environ: Mapping[str, str]) -> Iterator[Exposed]:
    for directory in filter(None, re.split("[:;]", environ.get("LD_LIBRARY_PATH", ""))):
        try:
            files = sorted(os.listdir(directory))
        except OSError:  # the loader passes over what it cannot list
            continue
        seen: set[str] = set()
        for file in files:
            if (name := short_name(file)) and name not in seen:
                seen.add(name)
                yield Exposed(name=name, path=os.path.join(directory, file), by="LD_LIBRARY_PATH")


def _cached(environ: Mapping[str, str]) -> Iterator[Exposed]:
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    program = find_command("ldconfig", (*path, "/sbin", "/usr/sbin"))
    if program is None:
        return  # macOS and musl have no cache
    try:
        done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeError(f"{program} -p does not answer ({error}): run it and read its message") from error
    for file, path in _CACHED.findall(done.stdout):
        if (name := short_name(file)) and name.startswith("libcudnn"):
            yield Exposed(name=name, path=path, by="ldconfig")
