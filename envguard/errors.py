"""The one base of every error a user can cause, shared by envguard, cache_tools and dflash.

In: nothing. Out: exception classes that own their exit code. The library raises them; only a command line prints them
(one line) and exits. Anything that is not a ``ToolError`` is a bug and deserves its traceback.
The table of codes is ``docs/exit-codes.md``.
"""

from __future__ import annotations

OK = 0
FINDINGS = 1
USAGE = 2
CRASHED = 3
INCOMPATIBLE = 4
CORRUPT = 5
UNTRUSTED = 6
INTERRUPTED = 130


class ToolError(Exception):
    """A problem that the user can act on: its message is one line saying what, where, got, allowed and what to do."""

    exit_code: int = FINDINGS


class UsageError(ToolError):
    """A wrong flag, configuration or policy: nothing was started."""

    exit_code = USAGE


class CheckCrashed(ToolError):
    """A check, or a tool that it needs, could not run: the answer is unknown, which is never a pass."""

    exit_code = CRASHED


class ProbeError(CheckCrashed):
    """A fact of the machine is there and cannot be read: a truncated file, a driver that refuses."""


class PolicyError(UsageError):
    """The policy file is missing or wrong; one line a problem."""


class DriftError(ToolError):
    """The environment is not what the policy and the lock say; one line a finding."""


class LockError(ToolError):
    """The lock is missing, damaged or of an unknown form, so nothing is expected of the environment."""
