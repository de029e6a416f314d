"""How open the files of a store are to others: as open as its folders, so that who opens a store once is done.

In: a folder of a store. Out: the mode for a new file in it, or a new folder. A new store is its maker's alone, since
entries of a cache hold environment variables and paths; others may read what is added where its folder lets them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from envguard import fsops

_FILE = 0o600
_FOLDER = 0o700


def file_mode(folder: Path) -> int:
    """The mode of a new file in ``folder``: whoever may list the folder may read the file."""
    return _FILE | (folder.stat().st_mode & 0o044)


def make_folder(folder: Path, *, like: Path) -> None:
    """Create ``folder``, as open to others as ``like``.

    Raises:
        FileExistsError: something is there.
    """
    fsops.mkdir(folder, mode=_FOLDER)
    given = like.stat().st_mode & (stat.S_ISVTX | 0o077)
    if given:
        folder.chmod(_FOLDER | given | (folder.stat().st_mode & stat.S_ISGID))


def open_up(fd: int, mode: int) -> None:
    """Give the file behind ``fd``, which was made with ``mode``, what the user's umask took from it."""
    if mode != _FILE:
        os.fchmod(fd, mode)
