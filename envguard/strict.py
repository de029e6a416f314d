"""Strict reading of a TOML table: every problem is collected, none stops the reading, and unknown keys are problems.

In: a table and the dotted place where it stands. Out: typed values, and in ``problems`` one line for each thing that
is wrong, naming the place, what was got and what is allowed. A value that is wrong reads as its default, so that the
caller can go on and find the next problem; the caller raises once, at the end, when ``problems`` is not empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class StrictTable:
    """One table of a TOML document; read every known key, then call ``close``."""

    def __init__(self, table: object, place: str, problems: list[str]) -> None:
        self.place = place
        self.problems = problems
        self._known: list[str] = []
        self._table: Mapping[str, Any] = {}
        if isinstance(table, Mapping):
            self._table = table
        else:
            problems.append(f"{place or 'the document'}: got {table!r}, allowed is a table")

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
            self.problems.append(f"{self._at(key)}: missing, it must be a string")
        return self.string(key) or ""

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
        return StrictTable({} if value is None else value, self._at(key), self.problems)

    def tables(self, key: str) -> list[StrictTable]:
        """An array of tables; [] where the key is absent."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._wrong(key, value, "an array of tables")
            return []
        return [StrictTable(each, f"{self._at(key)}[{index}]", self.problems) for index, each in enumerate(value)]

    def integer(self, key: str) -> int | None:
        """An integer, or None where the key is absent."""
        value = self._take(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self._wrong(key, value, "an integer")
        return None

    def boolean(self, key: str) -> bool:
        """True or false; false where the key is absent."""
        value = self._take(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(key, value, "true or false")
        return False

    def problem(self, key: str, text: str) -> None:
        """Note a problem of meaning about ``key``."""
        self.problems.append(f"{self._at(key)}: {text}")

    def close(self) -> None:
        """Note every key that nothing asked for, with the nearest key that exists."""
        for key in self._table:
            if key not in self._known:
                import difflib

                near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.0)
                hint = f", nearest known key: {near[0]}" if near else ""
                self.problems.append(f"{self._at(key)}: unknown key{hint}")

    def _take(self, key: str) -> Any:
        self._known.append(key)
        return self._table.get(key)

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def _wrong(self, key: str, value: object, allowed: str) -> None:
        self.problems.append(f"{self._at(key)}: got {value!r}, allowed is {allowed}")
