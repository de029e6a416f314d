"""Strict reading of a TOML table: every problem is collected, none stops the reading, and unknown keys are problems.

In: a table and the key under which it stands. Out: typed values, and in ``problems`` one ``Trouble`` for each thing
that is wrong: the key, what was got and what is allowed. A value that is wrong reads as its default, so that the
caller can go on and find the next problem; the caller raises once, at the end, when ``problems`` is not empty. Which
file and line a key stands on is the caller's to add.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from envguard.frozen import Frozen
from envguard.tomllines import Key


class Trouble(Frozen):
    """One thing that is wrong with a document."""

    key: Key
    text: str


class StrictTable:
    """One table of a TOML document; read every known key, then call ``close``."""

    def __init__(self, table: object, key: Key, problems: list[Trouble]) -> None:
        self.key = key
        self.problems = problems
        self._known: list[str] = []
        self._table: Mapping[str, Any] = {}
        if isinstance(table, Mapping):
            self._table = table
        else:
            problems.append(Trouble(key=key, text=f"got {table!r}, allowed is a table"))

    def names(self) -> list[str]:
        """The keys that are present, known or not."""
        return list(self._table)

    def string(self, key: str, default: str | None = None) -> str | None:
        """A string, or ``default`` where the key is absent or of another type."""
        value = self._take(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return default if value is None else value
        self._wrong(key, value, "a string that is not empty")
        return default

    def required(self, key: str) -> str:
        """A string that must be present; "" where it is not, after noting the problem."""
        if key not in self._table:
            self.problem(key, "missing, it must be a string")
        return self.string(key) or ""

    def date(self, key: str) -> datetime.date | None:
        """A date that must be present; None where it is not, after noting the problem."""
        value = self._take(key)
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value
        if value is None:
            self.problem(key, "missing, it must be a date such as 2026-12-31")
        else:
            self._wrong(key, value, "a date without quotes, such as 2026-12-31")
        return None

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """One of ``allowed``."""
        value = self._take(key)
        if value is None:
            return default
        if value not in allowed:
            self._wrong(key, value, " or ".join(repr(each) for each in allowed))
            return default
        return str(value)

    def strings(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of strings; ``default`` where the key is absent."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            self._wrong(key, value, "a list of strings")
            return ()
        return tuple(value)

    def table(self, key: str) -> StrictTable:
        """A sub-table; an empty one where the key is absent."""
        value = self._take(key)
        return StrictTable({} if value is None else value, (*self.key, key), self.problems)

    def tables(self, key: str) -> list[StrictTable]:
        """An array of tables; [] where the key is absent."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._wrong(key, value, "an array of tables")
            return []
        return [StrictTable(each, (*self.key, key, index), self.problems) for index, each in enumerate(value)]

    def boolean(self, key: str) -> bool:
        """True or false; false where the key is absent."""
        value = self._take(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(key, value, "true or false")
        return False

    def ignore(self, *keys: str) -> None:
        """Keys that someone else has read."""
        self._known += keys

    def problem(self, key: str, text: str) -> None:
        """Note a problem of meaning about ``key``."""
        self.problems.append(Trouble(key=(*self.key, key), text=text))

    def close(self) -> None:
        """Note every key that nothing asked for, with the nearest key that exists."""
        for key in self._table:
            if key not in self._known:
                import difflib

                near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.0)
                hint = f", nearest known key: {near[0]}" if near else ""
                self.problem(key, f"unknown key{hint} (POL003)")

    def _take(self, key: str) -> Any:
        self._known.append(key)
        return self._table.get(key)

    def _wrong(self, key: str, value: object, allowed: str) -> None:
        shown = value.isoformat() if isinstance(value, datetime.date) else repr(value)
        self.problem(key, f"got {shown}, allowed is {allowed}")
