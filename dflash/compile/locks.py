"""A lock that neither a fork nor a signal handler can make endless.

Reentrant, since a handler may call what the main thread is in. A forked child has only the thread that forked: what
another one held would stay held for ever, so the child begins with a new one. It is not held across the fork instead,
since several such locks would then be taken in an order of their own.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager


class Lock:
    """``with lock.held(): ...``."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def held(self) -> AbstractContextManager[object]:
        """The lock itself, for one with block."""
        return self._lock
