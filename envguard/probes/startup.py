"""What runs at every start of the interpreter before any program does: ``.pth``, sitecustomize, usercustomize.

In: the listing of site-packages and of the other directories on the path, and who owns what. Out: one ``StartupFile``
for each. None of them is executed. ``.pth`` lines that only add a directory are told apart from code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from envguard.frozen import Frozen
from envguard.probes.distributions import Distribution
from envguard.probes.files import read_head
from envguard.probes.records import Record, is_startup

MAX_BYTES = 64 * 1024
"""site.py reads a ``.pth`` whole; ours are below one kilobyte."""

_OF_VIRTUALENV = {"_virtualenv.pth": "import _virtualenv"}
"""uv and virtualenv write it into every environment, and no RECORD names it."""


class StartupFile(Frozen):
    """One file that runs, or may run, at every start."""

    path: str
    """Relative to site-packages, or absolute."""
    owner: str | None
    """The distribution whose RECORD names it; ``environment`` for what the environment's maker wrote; else None."""
    adds: tuple[str, ...]
    """Directories that a ``.pth`` puts on the path, existing ones only."""
    runs_code: bool
    """Whether it executes something: always, save for a ``.pth`` that only adds directories."""


def read_startup(
    site_packages: Path,
    distributions: Iterable[Distribution],
    found: Mapping[str, Record],
    others: Sequence[str] = (),
) -> tuple[StartupFile, ...]:
    """Those in ``site_packages``, by name as site.py runs them, then sitecustomize in the directories ``others``."""
    owners = {
        path: dist.name for dist in distributions if dist.directory in found for path in found[dist.directory].startup
    }
    names = {dist.name for dist in distributions}
    files = []
    for name in sorted(_list(site_packages)):
        path = name if is_startup(name) else _package(site_packages, name)
        if path is None:
            continue
        text = _read(site_packages / path) if name.endswith(".pth") else None
        adds, runs_code = ((), True) if text is None else parse_pth(text, site_packages)
        owner = owners.get(path)
        if owner is None and text is not None and text.strip() == _OF_VIRTUALENV.get(name):
            owner = "environment"
        if owner is None and name == "distutils-precedence.pth" and "setuptools" in names:
            owner = "setuptools"
        files.append(StartupFile(path=path, owner=owner, adds=adds, runs_code=runs_code))
    for directory in others:
        for name in sorted(_list(Path(directory))):
            if name in ("sitecustomize.py", "usercustomize.py"):
                place = os.path.join(directory, name)
                files.append(StartupFile(path=place, owner=None, adds=(), runs_code=True))
    return tuple(files)


def parse_pth(text: str, site_packages: Path) -> tuple[tuple[str, ...], bool]:
    """The directories that a ``.pth`` adds, and whether it also runs code (as site.py reads it)."""
    adds: list[str] = []
    runs_code = False
    for line in text.splitlines():
        if line.startswith(("import ", "import\t")):
            runs_code = True
        elif line.strip() and not line.startswith("#") and "\0" not in line:
            place = os.path.abspath(os.path.join(site_packages, line.rstrip()))
            if os.path.exists(place):
                adds.append(place)
    return tuple(dict.fromkeys(adds)), runs_code


def _package(site_packages: Path, name: str) -> str | None:
    if name not in ("sitecustomize", "usercustomize"):
        return None
    inside = sorted(each for each in _list(site_packages / name) if each.startswith("__init__."))
    return f"{name}/{inside[0]}" if inside else None


def _list(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # a directory on the path that is not there runs nothing
        return []


def _read(path: Path) -> str:
    try:
        return read_head(path, MAX_BYTES).decode(errors="surrogateescape")
    except OSError:  # site.py cannot run it either
        return ""
