"""Durations and sizes as people write them on a command line.

In: ``12h``, ``20GB``. Out: seconds, bytes. It prints nothing.
"""

from __future__ import annotations

import re

from envguard.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def seconds(text: str) -> float:
    """Seconds of ``30m``, ``12h``, ``7d``, ``4w``.

    Raises:
        UsageError: it is something else.
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)([smhdw])", text.strip())
    if not found:
        raise UsageError(f"{text!r} is not a duration: write a number and s, m, h, d or w, for instance 12h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


def size(text: str) -> int:
    """Bytes of ``500MB``, ``20GB``, ``1GiB``; a bare number is bytes.

    Raises:
        UsageError: it is something else.
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)\s*([A-Za-z]{0,3})", text.strip())
    unit = _BYTES.get((found[2] or "B").upper()) if found else None
    if not found or unit is None:
        raise UsageError(f"{text!r} is not a size: write a number and kB, MB, GB, TB, MiB or GiB, for instance 20GB")
    return int(float(found[1]) * unit)
