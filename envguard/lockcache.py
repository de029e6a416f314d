"""What a lock expects, through the cache: parsing a lock of a hundred packages costs as much as the rest of a start.

In: the lock's path and a marker environment. Out: ``Expected``, remembered by the content of the lock and everything
that a marker can ask about. Refusals are not remembered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from envguard.expect import Expected, expect, read_expected
from envguard.lock import load_lock
from envguard.statcache import StatCache

EDITION = 3
"""Raise it with every change of ``lock.py`` or ``expect.py`` that changes what a lock is taken to expect."""


def load_expected(lock: Path, environment: Mapping[str, str], cache: StatCache) -> Expected:
    """``expect`` of the lock at ``lock``; raises as ``load_lock`` and ``expect`` do."""
    try:
        content = lock.read_bytes()
    except OSError:
        return _compute(lock, environment)  # which says what is wrong with it
    asked = json.dumps([EDITION, sha256(content).hexdigest(), sorted(environment.items())])
    key = sha256(asked.encode()).hexdigest()
    place = os.fsencode(os.path.abspath(lock)) + environment["python_full_version"].encode()
    name = f"expected-{sha256(place).hexdigest()[:20]}.json"
    known = cache.read(name)
    if known is not None and known["key"] == key:
        return read_expected(lock, known)
    expected = _compute(lock, environment)
    cache.write(name, {"key": key, **expected.document()})
    return expected


def _compute(lock: Path, environment: Mapping[str, str]) -> Expected:
    return expect(load_lock(lock), environment)
