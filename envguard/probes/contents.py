"""The installed files against the RECORD of their distributions.

In: a site-packages directory and its distributions. Out: ``Contents``. What cannot be read is a value, never an
exception. It judges nothing and imports nothing of what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedFile:
    """One file that is not what RECORD says."""

    distribution: str
    path: str
    """Relative to site-packages, as RECORD has it."""
    kind: Literal["missing", "size", "content"]
    lines: str | None = None
    """Which lines were changed, such as ``12-14, 30``; None where the original is not at hand."""
    in_cache: bool = False
    """Whether the same inode lies in uv's cache, so that reinstalling from it brings the edit back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a comparison of site-packages with its RECORDs tells."""

    hashed: Literal["nothing", "watched", "everything"]
    """Which files' content was hashed; the others were compared by size."""
    fingerprints: Mapping[str, str]
    """Distribution → digest of its RECORD that is the same for the wheel, a uv install and a pip install."""
    changed: tuple[ChangedFile, ...]
    overlaps: tuple[tuple[str, tuple[str, ...]], ...]
    """(path, the distributions whose RECORDs name it), where there are several."""
    unowned: tuple[str, ...]
    """Files that no RECORD names; a directory with no owned file stands for everything in it and ends in ``/``."""
