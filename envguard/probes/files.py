"""Reading a file that may be anything: a pipe, a device, a circle of links, a terabyte.

In: a path and how much to read at most. Out: bytes. It never waits for a writer and never reads on without an end.
"""

from __future__ import annotations

import errno
import os
import stat


def read_head(path: str | os.PathLike[str], limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file.

    Raises:
        OSError: it is absent, unreadable or no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, "no possible path", os.fspath(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
        head = b""
        while len(head) < limit and (more := os.read(descriptor, limit - len(head))):
            head += more
        return head
    finally:
        os.close(descriptor)
