"""Where dflash keeps what it can make again: converted targets and cached features, under the platform's cache."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path


def cache_root() -> Path:
    """``~/.cache/dflash`` on Linux; XDG_CACHE_HOME is honoured."""
    return user_cache_path("dflash", appauthor=False)


def targets_dir() -> Path:
    """Converted target models."""
    return cache_root() / "targets"


def features_dir() -> Path:
    """Cached target features."""
    return cache_root() / "features"
