"""The errors that cache_tools raises beyond ``UsageError``.

In: nothing. Out: exception classes that own the exit codes of the compile cache (see docs/exit-codes.md), and one way
to turn an ``OSError`` into a line that says what was being done. Only a command line prints them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from envguard import errors
from envguard.cliutil import OS_ADVICE


class IncompatibleError(errors.ToolError):
    """A snapshot of another kind of machine or software: restored, it gives wrong results, crashes or misses."""

    exit_code = errors.INCOMPATIBLE


class CorruptError(errors.ToolError):
    """A file of a store is not what it must be: the message names the file."""

    exit_code = errors.CORRUPT


class UntrustedError(errors.ToolError):
    """A snapshot that is neither this user's own nor signed by a trusted key: restoring it runs somebody's code."""

    exit_code = errors.UNTRUSTED


class SecretsError(errors.ToolError):
    """A snapshot that is to be shared holds what looks like a secret; one line a finding, never the value."""

    exit_code = errors.FINDINGS


class StorageError(errors.ToolError):
    """The file system refused: full, read-only, not permitted. What was there before is untouched."""

    exit_code = errors.FINDINGS


READ_ONLY_ADVICE = (
    "; torch.compile would die there too (OSError 30), even where everything hits, since it takes lock files: "
    "choose a directory that can be written"
)
READ_ONLY_STORE = "; work on a copy of the store that can be written"


@contextlib.contextmanager
def storage_errors(doing: str, *, read_only: str = "; choose a directory that can be written") -> Iterator[None]:
    """Raise ``StorageError`` for an ``OSError`` of the block; ``doing`` says what failed: ``restoring x to y``.

    ``read_only``: what to add where the file system is; for a cache, ``READ_ONLY_ADVICE``, for what changes a store,
    ``READ_ONLY_STORE``.
    """
    try:
        yield
    except OSError as error:
        known = OS_ADVICE.get(error.errno or 0)
        advice = read_only if error.errno == errno.EROFS else f"; {known}" if known else ""
        raise StorageError(f"{doing} failed{_where(error)}: {error.strerror or error}{advice}") from error


def _where(error: OSError) -> str:
    """The file, or the folder of one whose name only we know."""
    if error.filename is None or isinstance(error.filename, int):
        return ""
    file = os.fsdecode(error.filename)
    folder, _, name = file.rpartition("/")
    return f" in {folder}" if name.startswith(".tmp-") and folder else f" at {file}"
