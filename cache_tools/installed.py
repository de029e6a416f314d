"""The metadata of one installed distribution, without ``importlib.metadata``, whose import costs 20 ms.

In: a site-packages directory and a name. Out: its version, or one of its metadata files. It judges nothing: a second
metadata directory of the same name is envguard's to report.
"""

from __future__ import annotations

import os
import re
from pathlib import Path


def version(name: str, packages: Path) -> str | None:
    """The version that METADATA gives; None where ``name`` is not installed in ``packages``."""
    text = read_text(name, "METADATA", packages)
    found = re.search(r"^Version: *(.+?) *$", text, re.MULTILINE) if text else None
    return found[1] if found else None


def read_text(name: str, file: str, packages: Path) -> str | None:
    """A metadata file of ``name`` (normalised, with ``_``); None where it, or the distribution, is not there."""
    pattern = re.compile(rf"{name}-[^-]+\.dist-info", re.IGNORECASE)
    directory = next((entry for entry in sorted(os.listdir(packages)) if pattern.fullmatch(entry)), None)
    path = packages / directory / file if directory else None
    return path.read_text() if path and path.is_file() else None
