"""Whether a command is on PATH. In: its name. Out: a yes or no.

(``shutil.which`` costs the import of five archivers.)
"""

from __future__ import annotations

import os


def is_command(name: str) -> bool:
    """Whether a shell would find ``name``."""
    return any(_is_program(os.path.join(directory, name)) for directory in os.get_exec_path())


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
