"""The name of a Triton template's source, which is a checksum of more than the file holds as it stands.

In: the text of a ``.py`` file. Out: the texts that torch may have hashed for its name. For a template of max-autotune
or flex attention torch hashes the source, ``||`` and the parameters (``make_extra`` in
torch/_inductor/select_algorithm.py). The parameters stand in the source too, as ``NAME : tl.constexpr = value``, so the
name can be checked: without that, half the sources of a max-autotune cache look damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MARK = "@triton_heuristics.template("
_OWN = "INDEX_DTYPE : tl.constexpr = "
"""torch writes all parameters, a line each, then this one of its own."""
_DEFINE = re.compile(r"[ ]*(\w+) : tl\.constexpr = (.+)")
_LAUNCH = re.compile(r"\nnum_stages=(\d+),\nnum_warps=(\d+),\n")
_PLAIN = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|True|False|None|-?inf|nan")


def hashed_texts(text: str) -> Iterator[str]:
    """What torch hashed for the name of the template source ``text``; nothing where it is no template.

    The source shows ``str`` of each value, and torch hashes ``repr``: a value that is neither number nor constant was
    a string, or else an expression.
    """
    if MARK not in text:
        return
    values, launch = _parameters(text), _LAUNCH.search(text)
    if values is None or launch is None:
        return
    for show in (repr, str):
        parts = [
            f"{name}={value if _PLAIN.fullmatch(value) else show(value)}" for name, value in sorted(values.items())
        ]
        yield f"{text.strip()}||{'-'.join([*parts, f'num_stages={launch[1]}', f'num_warps={launch[2]}'])}-"


def _parameters(text: str) -> dict[str, str] | None:
    """Name and value of each line above torch's own parameter; None where there is no such one."""
    own = text.find(_OWN)
    end = text.rfind("\n", 0, own)
    if own < 0 or text[end + 1 : own].strip(" "):
        return None
    values: dict[str, str] = {}
    while end > 0:
        begin = text.rfind("\n", 0, end)
        if not (found := _DEFINE.fullmatch(text, begin + 1, end)):
            break
        values.setdefault(found[1], found[2])
        end = begin
    return values
