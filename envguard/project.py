"""Where a project and its policy are.

In: a directory, or none. Out: a ``Project``. It looks for ``envguard.toml`` from the current directory upwards, and
only there where a directory is named. It parses nothing and installs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from envguard.errors import PolicyError, UsageError
from envguard.frozen import Frozen
from envguard.policy import FILE_NAME


class Project(Frozen):
    """A directory that holds a policy."""

    root: Path

    @property
    def policy(self) -> Path:
        """The policy file."""
        return self.root / FILE_NAME

    @property
    def venv(self) -> Path:
        """The environment that uv gives this project: ``UV_PROJECT_ENVIRONMENT``, else ``.venv``."""
        return self.root / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")


def find_project(directory: Path | None = None) -> Project:
    """The project in ``directory``, or the nearest one from the current directory upwards.

    Raises:
        UsageError: ``directory`` is no directory, or the current one is gone.
        PolicyError: there is no policy file.
    """
    if directory is not None:
        if not directory.is_dir():
            raise UsageError(f"--project {directory}: no such directory; name one that holds {FILE_NAME}")
        root = directory.resolve()
        if not (root / FILE_NAME).is_file():
            raise PolicyError(f"--project {directory}: there is no {FILE_NAME} in it; name the project's own directory")
        return Project(root=root)
    try:
        here = Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current directory has been deleted: change into the project") from error
    for root in (here, *here.parents):
        if (root / FILE_NAME).is_file():
            return Project(root=root)
    raise PolicyError(f"no {FILE_NAME} in {here} or above: change into a project, or name one with --project DIR")
