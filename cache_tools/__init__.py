"""cache_tools: the torch.compile cache as a verified artefact that can be kept, moved and put back.

The public names below are imported on first use, so that ``import cache_tools`` costs nothing; none imports torch.
Four more functions share the name of their module: ``scan.scan``, ``snapshot.snapshot``, ``observe.observe`` and
``coverage.coverage``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cache_tools.explain import explain_run as explain_run
    from cache_tools.fingerprint import Comparison as Comparison
    from cache_tools.fingerprint import Fingerprint as Fingerprint
    from cache_tools.fingerprint import compare as compare
    from cache_tools.lease import using as using
    from cache_tools.live import check_live as check_live
    from cache_tools.live import quarantine as quarantine
    from cache_tools.paths import default_cache_dir as default_cache_dir
    from cache_tools.paths import default_store_dir as default_store_dir
    from cache_tools.pins import pin as pin
    from cache_tools.pins import unpin as unpin
    from cache_tools.plan import best_match as best_match
    from cache_tools.plan import plan_restore as plan_restore
    from cache_tools.prune_plan import plan_prune as plan_prune
    from cache_tools.restore import execute as execute
    from cache_tools.session import restored as restored
    from cache_tools.stable import stable_keys as stable_keys
    from cache_tools.store import Store as Store
    from cache_tools.store import create_store as create_store
    from cache_tools.store import open_store as open_store
    from cache_tools.trace import CacheTrace as CacheTrace
    from cache_tools.trust import judge as judge
    from cache_tools.verify import list_snapshots as list_snapshots
    from cache_tools.verify import verify_store as verify_store

_HOMES = {
    "CacheTrace": "trace",
    "Comparison": "fingerprint",
    "Fingerprint": "fingerprint",
    "compare": "fingerprint",
    "check_live": "live",
    "quarantine": "live",
    "default_cache_dir": "paths",
    "default_store_dir": "paths",
    "using": "lease",
    "pin": "pins",
    "unpin": "pins",
    "best_match": "plan",
    "plan_restore": "plan",
    "plan_prune": "prune_plan",
    "execute": "restore",
    "explain_run": "explain",
    "Store": "store",
    "create_store": "store",
    "open_store": "store",
    "judge": "trust",
    "list_snapshots": "verify",
    "restored": "session",
    "stable_keys": "stable",
    "verify_store": "verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'cache_tools' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cache_tools.{_HOMES[name]}"), name)
