"""dflash's own errors; the exit codes come from ``envguard.errors`` (table: ``docs/exit-codes.md``)."""

from __future__ import annotations

from envguard.errors import INTERRUPTED, ToolError, UsageError


class ConfigError(UsageError):
    """The configuration is wrong: every problem at once, one a line."""


class InputError(UsageError):
    """A file the user named is missing, corrupt or holds nothing usable: data, prompts, checkpoint, target."""


class RunError(ToolError):
    """The run started and cannot go on."""


class Interrupted(ToolError):
    """Ctrl-C or SIGTERM: the state is saved."""

    exit_code = INTERRUPTED
