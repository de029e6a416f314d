"""On which line a key stands: whatever TOML allows, against a writer that knows the lines because it wrote them."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from envguard.tomllines import Key, dotted, locate

TRICKY = '''\
# [comment]
schema = 1 # = 2
"quoted.key" = 'x'
a.b."c d" = 3
text = """
[not.a.table]
key = 1 \\""" still text
"""
raw = \'\'\'
[[nor.this]]\'\'\'
many = [ # ]
  "]", # comma, "quote
  { inner = 1, deep.er = [1,
    2] },
]
date = 1979-05-27 07:32:00

[ table . sub ]
x = "\\"]"
[[array]]
name = "one"
[array.child]
y = 1
[[array]]
[[array.more]]
z = { "" = {} }
[[array.more]]
'''


def test_every_form_of_toml_is_located() -> None:
    tomllib.loads(TRICKY)
    lines = locate(TRICKY)
    assert {dotted(key): line for key, line in lines.items()} == {
        "schema": 2,
        "quoted.key": 3,
        "a": 4,
        "a.b": 4,
        "a.b.c d": 4,
        "text": 5,
        "raw": 9,
        "many": 11,
        "many[0]": 12,
        "many[1]": 13,
        "many[1].inner": 13,
        "many[1].deep": 13,
        "many[1].deep.er": 13,
        "many[1].deep.er[0]": 13,
        "many[1].deep.er[1]": 14,
        "date": 16,
        "table": 18,
        "table.sub": 18,
        "table.sub.x": 19,
        "array": 20,
        "array[0]": 20,
        "array[0].name": 21,
        "array[0].child": 22,
        "array[0].child.y": 23,
        "array[1]": 24,
        "array[1].more": 25,
        "array[1].more[0]": 25,
        "array[1].more[0].z": 26,
        "array[1].more[0].z.": 26,
        "array[1].more[1]": 27,
    }


def test_windows_line_ends_count_once() -> None:
    assert locate(TRICKY.replace("\n", "\r\n")) == locate(TRICKY)


@pytest.mark.parametrize(
    "text", ['a = """"two"""""\nb = 1', "a = '''x''''\nb = 1", 'a = ""\nb = 1', 'a = """"""\nb = 1', "a = ''\nb = 1"]
)
def test_quotes_at_the_edge_of_a_string(text: str) -> None:
    tomllib.loads(text)
    assert locate(text)["b",] == 2


def paths(value: Any, key: Key = ()) -> list[Key]:
    """Every place in a document."""
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    below = [path for part, child in children for path in paths(child, (*key, part))]
    return ([key] if key else []) + below


SCALARS = st.one_of(
    st.integers(-(2**40), 2**40), st.booleans(), st.dates(), st.datetimes(), st.text(max_size=12), st.floats(width=32)
)
NAMES = st.one_of(st.text(max_size=6), st.sampled_from(["a", "b", "a.b", "[x]", 'q"', "#", "="]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.booleans())
def test_every_key_of_any_document_is_located(document: dict[str, Any], is_multiline: bool) -> None:
    text = tomli_w.dumps(document, multiline_strings=is_multiline)
    lines = locate(text)
    assert sorted(map(repr, lines)) == sorted(map(repr, paths(tomllib.loads(text))))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@st.composite
def written(draw: st.DrawFn) -> tuple[str, dict[Key, int]]:
    """A text and the line of each key and table in it, noted while it was written."""
    text, lines = "", {}
    values = st.sampled_from(
        ["1", "'x'", '"""\nk = 1\n[t]\n"""', "'''\n[[t]]\n'''", "[1, # ]\n  2]", "{ inner = 1 }", "2020-01-01 # x"]
    )
    names = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6, unique=True)
    for table in ("", *draw(names)):
        if table:
            lines[table,] = text.count("\n") + 1
            text += f"[{json.dumps(table)}]\n" if table.isprintable() and table.isascii() else f"[{quoted(table)}]\n"
        for name in draw(names):
            if not table and (name,) in lines:
                continue
            text += draw(st.sampled_from(["", "\n", "# [c]\n", "\t\n"]))
            key: Key = (table, name) if table else (f"top {name}",)
            lines[key] = text.count("\n") + 1
            text += f"{quoted(str(key[-1]))} = {draw(values)}\n"
    return text, lines


def quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(each):08x}" for each in text) + '"'


@given(written())
def test_lines_are_those_of_the_writer(case: tuple[str, dict[Key, int]]) -> None:
    text, lines = case
    tomllib.loads(text)
    found = locate(text)
    assert {key: found[key] for key in lines} == lines
