"""The CUDA toolkit that compiles for this process: where nvcc is, and of which release.

In: environment variables. Out: a ``Toolkit``, or None where there is none. It asks ``version.json`` first, and nvcc
itself where that file is not there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from envguard.errors import ProbeError
from envguard.frozen import Frozen

TIMEOUT = 20.0


class Toolkit(Frozen):
    """One CUDA toolkit."""

    nvcc: str
    version: str
    """Release, such as ``13.0``."""


def find_toolkit(environ: Mapping[str, str]) -> Toolkit | None:
    """The toolkit that ``torch.utils.cpp_extension`` would use: CUDA_HOME, CUDA_PATH, else nvcc on PATH.

    Raises:
        ProbeError: nvcc is there and does not tell its release.
    """
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    nvcc = str(Path(home, "bin", "nvcc")) if home else shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if nvcc is None:
        return None
    version = _read_version(Path(nvcc).parent.parent / "version.json") or _ask(nvcc)
    return Toolkit(nvcc=nvcc, version=version)


def _read_version(path: Path) -> str | None:
    try:
        return ".".join(str(json.loads(path.read_bytes())["cuda"]["version"]).split(".")[:2])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProbeError(
            f"{path} does not tell the CUDA release ({type(error).__name__}): repair the toolkit"
        ) from error


def _ask(nvcc: str) -> str:
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeError(f"{nvcc} --version does not answer ({error}): repair CUDA_HOME or the toolkit") from error
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    if found is None:
        raise ProbeError(f"{nvcc} --version names no release: repair CUDA_HOME or the toolkit")
    return found[1]
