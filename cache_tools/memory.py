"""Keeping freed memory for reuse, in a command that lives for a second.

In, out: nothing. By default glibc gives large blocks back as soon as they are free, and the kernel fills what is asked
for next with zeros, page by page: 25,000 faults in a snapshot. It is for commands: a library does not tune its process.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_BLOCK_BYTES = 32 << 20  # the most that glibc takes
_KEEP_BYTES = 128 << 20


def keep_freed() -> None:
    """From now on; nothing where the C library has no such setting."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _KEEP_BYTES)
