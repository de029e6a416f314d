"""The errors that cache_tools raises beyond ``UsageError``.

In: nothing. Out: exception classes that own the exit codes of the compile cache (see docs/exit-codes.md).
They are raised by the library and printed, one line each, only by a command line.
"""

from __future__ import annotations

from envguard import errors


class IncompatibleError(errors.ToolError):
    """A snapshot of another kind of machine or software: restored, it gives wrong results, crashes or misses."""

    exit_code = errors.INCOMPATIBLE


class CorruptError(errors.ToolError):
    """A file of a store is not what it must be: the message names the file."""

    exit_code = errors.CORRUPT
