"""Reading files of a store that a stranger may have laid out.

In: a path. Out: bytes or a descriptor of a regular file. A link, a pipe or a device in its place is refused: a pipe
would block its reader for ever, and ``/dev/zero`` has no end. It judges no content.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from cache_tools.errors import CorruptError


def open_plain(path: Path) -> int:
    """A descriptor for reading ``path``.

    Raises:
        CorruptError: it is a link, a folder, a pipe, a socket or a device.
        OSError: it is not there or cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # NONBLOCK: pipes open at once
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # ENXIO: a socket
            raise CorruptError(f"{path} is not a plain file: remove it") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CorruptError(f"{path} is not a plain file: remove it")
    return fd


def read_plain(path: Path, *, limit: int) -> bytes:
    """The content of ``path``; of a longer one the first ``limit`` bytes and one more, so that it can be told.

    Raises:
        CorruptError: it is no plain file.
        OSError: it is not there or cannot be read.
    """
    with os.fdopen(open_plain(path), "rb") as handle:  # read() makes a buffer of what it is asked for
        return handle.read(min(os.fstat(handle.fileno()).st_size, limit) + 1)
