"""Subcommands of ``envguard`` that are more than a report, one file each: its arguments, and the call that does it."""
