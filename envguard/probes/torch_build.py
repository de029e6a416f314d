"""Which build of torch is installed, read from the text of ``torch/version.py``.

In: a site-packages directory. Out: a ``TorchBuild``, or None where torch is not installed.
It never imports torch (3.7 s) and never executes the file: ``ast`` reads the literals. The distribution's metadata is
of no use here: the wheel that the package index serves says ``2.11.0`` while the file says ``2.11.0+cu130``.
"""

from __future__ import annotations

import ast
from pathlib import Path

from envguard.errors import ProbeError
from envguard.frozen import Frozen
from envguard.probes.files import read_head

MAX_BYTES = 64 * 1024
"""The real file has about 300 bytes; anything far larger is not a version file."""


class TorchBuild(Frozen):
    """The identity of one build; a field is None where ``version.py`` says None or does not have the name."""

    version: str
    """Version with its local label, such as ``2.11.0+cu130``."""
    cuda: str | None
    """CUDA release that it was built for, such as ``13.0``."""
    hip: str | None
    """ROCm HIP release that it was built for."""
    git_version: str | None
    """The commit of pytorch that it was built from, 40 hex digits."""


def read_torch_build(site_packages: Path) -> TorchBuild | None:
    """Read the build of the torch in ``site_packages``.

    Raises:
        ProbeError: the file is there and cannot be read, is no Python, or holds no ``__version__``.
    """
    path = site_packages / "torch" / "version.py"
    try:
        source = read_head(path, MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ProbeError(f"{path} cannot be read ({error.strerror}): reinstall torch") from error
    if len(source) > MAX_BYTES:
        raise ProbeError(f"{path} is larger than {MAX_BYTES} bytes, so it is no version file: reinstall torch")
    return parse_version_file(source, origin=str(path))


def parse_version_file(source: bytes, *, origin: str) -> TorchBuild:
    """Parse the content of a ``version.py``; ``origin`` is named in the error.

    Raises:
        ProbeError: ``source`` is no Python or holds no ``__version__`` string.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProbeError(f"{origin} is no valid Python ({error}): reinstall torch") from error
    literals: dict[str, str] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            literals[target.id] = value.value
    if "__version__" not in literals:
        raise ProbeError(f"{origin} holds no __version__ string: reinstall torch")
    return TorchBuild(
        version=literals["__version__"],
        cuda=literals.get("cuda"),
        hip=literals.get("hip"),
        git_version=literals.get("git_version"),
    )
