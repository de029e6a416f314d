"""Which interpreter is judged, and where its packages lie.

In: None for the running interpreter, or the path of another one (or of a virtual environment). Out: an ``Interpreter``.
A virtual environment is read from its ``pyvenv.cfg`` and nothing of it is executed; only an interpreter outside any
environment is asked, in isolated mode (``-I -S``: no site-packages code runs).
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from envguard.errors import ProbeError, UsageError
from envguard.frozen import Frozen

ASK_TIMEOUT = 20.0
"""Seconds that a foreign interpreter gets to say who it is."""

_ASK = (
    "import json, platform, sys, sysconfig; "
    "print(json.dumps([platform.python_version(), sys.implementation.name, sys.prefix, sysconfig.get_path('purelib')]))"
)


class Interpreter(Frozen):
    """One Python installation or virtual environment."""

    executable: Path
    prefix: Path
    version: str
    """Full version, such as ``3.11.7``."""
    implementation: str
    """``cpython``, ``pypy``, …"""
    site_packages: Path
    is_venv: bool
    system_site: bool
    """Whether the base interpreter's packages are importable beside those of the environment."""
    user_site: Path | None
    """The user's own site-packages, where they are importable; None where they are switched off."""

    def marker_environment(self) -> dict[str, str]:
        """The PEP 508 environment of this interpreter; the machine part is that of this machine."""
        system = os.uname()
        major_minor = ".".join(self.version.split(".")[:2])
        return {
            "python_version": major_minor,
            "python_full_version": self.version,
            "implementation_name": self.implementation,
            "implementation_version": self.version,
            "platform_python_implementation": "CPython" if self.implementation == "cpython" else self.implementation,
            "os_name": os.name,
            "sys_platform": sys.platform,
            "platform_machine": system.machine,
            "platform_system": system.sysname,
            "platform_release": system.release,
            "platform_version": system.version,
            "extra": "",
        }


def find_interpreter(python: Path | None = None) -> Interpreter:
    """Describe the running interpreter, or the one at ``python``.

    Raises:
        UsageError: ``python`` is neither an interpreter nor a virtual environment, or does not answer as one.
        ProbeError: its ``pyvenv.cfg`` is damaged.
    """
    if python is None:
        return _running()
    path = Path(os.path.abspath(python))  # never resolved: the link in a venv's bin leads out of it
    if path.is_dir():
        path = path / "python" if (path / "python").is_file() else path / "bin" / "python"
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"--python {python}: {path} is no interpreter; name an executable or a virtual environment")
    prefix = path.parent.parent
    try:
        config = parse_pyvenv((prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return _ask(path)
    except OSError as error:
        raise ProbeError(f"{prefix / 'pyvenv.cfg'} cannot be read ({error.strerror}): recreate the venv") from error
    return _from_pyvenv(path, prefix, config)


def default_python(venv: Path) -> Path | None:
    """The environment to judge where none is named: the project's, if this interpreter is that of a tool; else None.

    uv and pipx leave a receipt in the environment of a tool; that one is never part of what it judges.

    Raises:
        UsageError: this is a tool, and the project has no environment.
    """
    receipts = ("uv-receipt.toml", "pipx_metadata.json")
    is_tool = any(os.path.exists(os.path.join(sys.prefix, receipt)) for receipt in receipts)
    if is_tool and not venv.is_dir():
        raise UsageError(f"{venv} does not exist: run uv sync --locked, or name an environment with --python")
    return venv if is_tool else None


def parse_pyvenv(text: str) -> dict[str, str]:
    """The ``key = value`` lines of a ``pyvenv.cfg``, keys in lower case."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _running() -> Interpreter:
    is_venv = sys.prefix != sys.base_prefix
    return Interpreter(
        executable=Path(sys.executable),
        prefix=Path(sys.prefix),
        version=sys.version.partition(" ")[0],
        implementation=sys.implementation.name,
        site_packages=_site_packages(Path(sys.prefix), sys.version_info) if is_venv else _own_purelib(),
        is_venv=is_venv,
        system_site=is_venv and _has_system_site(Path(sys.prefix)),
        user_site=Path(site.getusersitepackages()) if site.ENABLE_USER_SITE else None,
    )


def _site_packages(venv: Path, version: Sequence[object]) -> Path:
    return venv / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"


def _own_purelib() -> Path:
    import sysconfig  # a distribution of Linux may lay its own Python out as it likes

    return Path(sysconfig.get_path("purelib"))


def _from_pyvenv(path: Path, prefix: Path, config: Mapping[str, str]) -> Interpreter:
    version = config.get("version_info") or config.get("version") or ""  # uv and virtualenv; the standard venv
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        raise ProbeError(f"{prefix / 'pyvenv.cfg'} names no Python version: recreate the venv")
    is_shared = _is_shared(config)
    return Interpreter(
        executable=path,
        prefix=prefix,
        version=".".join(parts[:3]),
        implementation=config.get("implementation", "CPython").lower(),
        site_packages=_site_packages(prefix, parts),
        is_venv=True,
        system_site=is_shared,
        user_site=_user_site(parts) if is_shared else None,
    )


def _has_system_site(prefix: Path) -> bool:
    try:
        config = parse_pyvenv((prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace"))
    except OSError:  # an environment without the file shares nothing (site.py)
        return False
    return _is_shared(config)


def _is_shared(config: Mapping[str, str]) -> bool:
    return config.get("include-system-site-packages", "false").lower() == "true"


def _user_site(version: Sequence[str]) -> Path | None:
    """Where ``site.py`` looks for it; None where ``PYTHONNOUSERSITE`` switches it off."""
    if os.environ.get("PYTHONNOUSERSITE"):
        return None
    base = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")
    return Path(base) / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"


def _ask(path: Path) -> Interpreter:
    import json
    import subprocess

    command = [str(path), "-I", "-S", "-c", _ASK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT, check=True)
        version, implementation, prefix, site_packages = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{path} does not answer as a Python 3 does: name a Python 3 interpreter or a virtual environment"
        ) from error
    return Interpreter(
        executable=path,
        prefix=Path(prefix),
        version=version,
        implementation=implementation,
        site_packages=Path(site_packages),
        is_venv=False,
        system_site=False,
        user_site=_user_site(version.split(".")),
    )
