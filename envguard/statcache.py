"""What was read once and need not be read again: small JSON documents in the user's cache directory.

In: a name, and a document. Out: the document as it was written, or None: absent, damaged, another schema, writable or
owned by somebody else. None always means "read it anew", so a cache that is lost, forged by another user or out of
space costs time and nothing else. What a file's ``signature`` vouches for is remembered only when the file
``has_settled``: a file that was written within the last tick of the clock can change again under the same signature.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from envguard.frozen import Frozen

SCHEMA = 1
MAX_BYTES = 256 << 20
_SEAL = "envguard-"
_TEMP = ".tmp-"
TICK_NS = 2_000_000_000
"""The coarsest clock of a file system in use (FAT, some NFS servers): two seconds."""
UNUSED_DAYS = 60
"""A document that nobody has rewritten for so long belongs to an environment that is gone."""


def signature(status: os.stat_result) -> str:
    """What changes whenever the file's content may have changed, writes through a mapping that lay open aside.

    The kernel marks a mapped page once, at its first write; see docs/envguard.md.
    """
    return f"{status.st_dev},{status.st_ino},{status.st_size},{status.st_mtime_ns},{status.st_ctime_ns}"


def has_settled(status: os.stat_result, now_ns: int) -> bool:
    """Whether a write after ``now_ns`` would give the file another signature."""
    return max(status.st_mtime_ns, status.st_ctime_ns) < now_ns - TICK_NS


def cache_directory(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/envguard``, else ``~/.cache/envguard``; None where neither is an absolute path."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "envguard" if os.path.isabs(base) else None


class StatCache(Frozen):
    """The documents of one user."""

    directory: Path | None
    """None: nothing is remembered."""

    @staticmethod
    def default() -> StatCache:
        """The cache of the user who runs this process."""
        return StatCache(directory=cache_directory(os.environ))

    def read(self, name: str) -> Any:
        """The document called ``name``, or None."""
        if self.directory is None:
            return None
        try:
            descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # it is not there yet, or not ours to read
            return None
        try:
            status = os.fstat(descriptor)
            if not _is_own(status) or status.st_size > MAX_BYTES:
                return None
            with open(descriptor, "rb", closefd=False) as handle:
                head, _, body = handle.read().partition(b"\n")
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if head.decode(errors="replace") != _seal(name, body):
            return None
        return json.loads(body)  # the seal vouches that ``write`` made it

    def write(self, name: str, document: Any) -> None:
        """Remember ``document``; where the directory cannot be written, do without."""
        if self.directory is None:
            return
        body = json.dumps(document, separators=(",", ":")).encode()
        temp = self.directory / f"{_TEMP}{name}-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):  # read-only home, full disk, another user's directory
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            try:
                descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                with os.fdopen(descriptor, "wb") as handle:
                    handle.write(_seal(name, body).encode() + b"\n" + body)
                os.replace(temp, self.directory / name)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temp)
            self._forget_unused()

    def _forget_unused(self) -> None:
        limit = time.time() - UNUSED_DAYS * 86_400
        assert self.directory is not None
        with os.scandir(self.directory) as entries:
            for entry in entries:
                is_file = entry.is_file(follow_symlinks=False)
                if is_file and entry.stat(follow_symlinks=False).st_mtime < limit and _is_ours(entry.path):
                    os.unlink(entry.path)


def _is_ours(path: str) -> bool:
    """Whether ``write`` made it: the directory may hold somebody's files too."""
    with open(path, "rb") as handle:
        head = handle.read(len(_SEAL))
    return head == _SEAL.encode() or (head == b"" and os.path.basename(path).startswith(_TEMP))


def _is_own(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _seal(name: str, body: bytes) -> str:
    """Also over the name, so that one document renamed to another is none."""
    return f"{_SEAL}{SCHEMA} {sha256(name.encode() + bytes(1) + body).hexdigest()}"
