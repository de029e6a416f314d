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
# torch writes all parameters, then this one of its own.
_DEFINES = re.compile(r"((?:^[ ]*\w+ : tl\.constexpr = .+\n)*)^[ ]*INDEX_DTYPE : tl\.constexpr = ", re.MULTILINE)
_DEFINE = re.compile(r"^[ ]*(\w+) : tl\.constexpr = (.+)$", re.MULTILINE)
_LAUNCH = re.compile(r"^num_stages=(\d+),\nnum_warps=(\d+),$", re.MULTILINE)
_PLAIN = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|True|False|None|-?inf|nan")


def hashed_texts(text: str) -> Iterator[str]:
    """What torch hashed for the name of the template source ``text``; nothing where it is no template.

    The source shows ``str`` of each value, and torch hashes ``repr``: a value that is neither number nor constant was
    a string, or else an expression.
    """
    if MARK not in text:
        return
    defines, launch = _DEFINES.search(text), _LAUNCH.search(text)
    if defines is None or launch is None:
        return
    values = dict(_DEFINE.findall(defines[1]))
    for show in (repr, str):
        parts = [
            f"{name}={value if _PLAIN.fullmatch(value) else show(value)}" for name, value in sorted(values.items())
        ]
        yield f"{text.strip()}||{'-'.join([*parts, f'num_stages={launch[1]}', f'num_warps={launch[2]}'])}-"
