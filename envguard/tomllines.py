"""On which line of a TOML text each key stands.

In: a text that ``tomllib`` accepts. Out: every key's path (names, and indices inside arrays) with its line, counted
from 1. ``tomllib`` tells no positions; this scanner follows the grammar just far enough to know where a key begins
and where its value ends, and leaves every judgement of correctness to ``tomllib``.
"""

from __future__ import annotations

import re
import tomllib
from typing import TypeAlias

Key: TypeAlias = tuple[str | int, ...]
"""A place in a document, such as ``("profiles", "cpu", "torch", 0, "version")``."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:\\.|[^"\\\n])*"' + r"|'[^'\n]*'", re.DOTALL
)
_SCALAR = re.compile(r"[^,\]}#\n]+")  # numbers, dates, booleans


def locate(text: str) -> dict[Key, int]:
    """The line of every key, table, array of tables and element of an array in ``text``."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


def dotted(key: Key) -> str:
    """``key`` as a person writes it, such as ``profiles.cpu.torch[0].version``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Key, int] = {}
        self.counts: dict[Key, int] = {}
        """How many tables each ``[[array]]`` has so far."""
        self._counted_to, self._line = 0, 1

    def scan(self) -> dict[Key, int]:
        table: Key = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self.lines

    def _header(self) -> Key:
        line = self._here()
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        parts = self._name()
        self.at += 2 if is_array else 1
        key: Key = ()
        for part in parts[:-1]:
            key = self._last_of((*key, part))
        key = (*key, parts[-1])
        if is_array:
            self.lines.setdefault(key, line)
            self.counts[key] = self.counts.get(key, 0) + 1
        key = self._last_of(key)
        self._note(key, line)
        return key

    def _last_of(self, key: Key) -> Key:
        """The table that a header means by ``key``: in an array of tables, the newest one."""
        return (*key, self.counts[key] - 1) if key in self.counts else key

    def _pair(self, table: Key) -> None:
        line = self._here()
        key = (*table, *self._name())
        self._note(key, line)
        self.at += 1  # the equals sign
        self._value(key)

    def _name(self) -> list[str]:
        """A dotted key and the blanks around it."""
        self._skip(_BLANK)
        parts = [self._part()]
        while self._skip(_DOT):
            parts.append(self._part())
        self._skip(_BLANK)
        return parts

    def _part(self) -> str:
        if bare := self._skip(_BARE):
            return bare
        quoted = self._skip(_STRING)
        return str(tomllib.loads(f"key = {quoted}")["key"])

    def _value(self, key: Key) -> None:
        self._skip(_BLANK)
        match self.text[self.at]:
            case "[":
                self._array(key)
            case "{":
                self._inline_table(key)
            case '"' | "'":
                self._skip(_STRING)
            case _:
                self._skip(_SCALAR)

    def _array(self, key: Key) -> None:
        self.at += 1
        index = 0
        while not self._closes("]"):
            self._note((*key, index), self._here())
            self._value((*key, index))
            index += 1
            self._comma()

    def _inline_table(self, key: Key) -> None:
        self.at += 1
        while not self._closes("}"):
            self._pair(key)
            self._comma()

    def _closes(self, bracket: str) -> bool:
        self._skip(_BLANK)
        if self.text[self.at] != bracket:
            return False
        self.at += 1
        return True

    def _comma(self) -> None:
        self._skip(_BLANK)
        if self.text[self.at] == ",":
            self.at += 1

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def _here(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def _note(self, key: Key, line: int) -> None:
        """Keep ``line`` for ``key`` and for the tables above it that only dotted names mention."""
        for length in range(1, len(key)):
            self.lines.setdefault(key[:length], line)
        self.lines[key] = line
