"""Where a command is on PATH. In: its name. Out: its place, or none.

(``shutil.which`` costs the import of five archivers.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def is_command(name: str) -> bool:
    """Whether a shell would find ``name``."""
    return find_command(name, os.get_exec_path()) is not None


def find_command(name: str, directories: Iterable[str]) -> str | None:
    """The first of ``directories`` that has the program ``name``, joined with it."""
    places = (os.path.join(directory, name) for directory in directories)
    return next(filter(_is_program, places), None)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
