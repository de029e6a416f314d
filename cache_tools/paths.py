"""Where things are by default: the cache that torch writes, the store of its snapshots, and whom the user trusts.

In: environment variables and the user's name. Out: paths; nothing is created and torch is not imported.
The rules for the cache are those of ``torch/_inductor/runtime/cache_dir_utils.py`` in torch 2.11.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from envguard.errors import UsageError

STORE_VARIABLE = "DFLASH_CACHE_STORE"
TRUST_VARIABLE = "DFLASH_CACHE_TRUST"
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory that inductor uses in this environment: the variable, else ``<temporary>/torchinductor_<user>``.

    Raises:
        UsageError: the variable is empty: torch fails then, and the current directory is not meant.
    """
    configured = environ.get(CACHE_VARIABLE)
    if configured == "":
        raise UsageError(f"{CACHE_VARIABLE} is set and empty, which torch cannot use: unset it, or name a directory")
    if configured is not None:
        return Path(configured).absolute()
    import getpass
    import tempfile  # 8 ms, which a call that names its cache does not owe

    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"


def default_store_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """``$DFLASH_CACHE_STORE``, else ``cache-store`` in the platform's data directory."""
    configured = environ.get(STORE_VARIABLE)
    if configured:
        return Path(configured).absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("dflash", appauthor=False)) / "cache-store"


def default_trust_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """``$DFLASH_CACHE_TRUST``, else ``cache-trust`` in the platform's configuration directory."""
    configured = environ.get(TRUST_VARIABLE)
    if configured:
        return Path(configured).absolute()
    import platformdirs

    return Path(platformdirs.user_config_dir("dflash", appauthor=False)) / "cache-trust"
