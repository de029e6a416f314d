"""What a lock expects, through the cache: parsing a lock of a hundred packages costs as much as the rest of a start.

In: the lock's path and a marker environment. Out: ``Expected``, remembered by the content of the lock and everything
that a marker can ask about. Refusals are not remembered.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from envguard.expect import Expected, expect
from envguard.lock import Metadata, Rewrites, Source, load_lock
from envguard.statcache import StatCache

EDITION = 2
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
        return _read(lock, known)
    expected = _compute(lock, environment)
    cache.write(name, {"key": key, **_write(expected)})
    return expected


def _write(expected: Expected) -> dict[str, Any]:
    return {
        "required": expected.required,
        "optional": expected.optional,
        "sources": {name: [source.kind, source.location] for name, source in expected.sources.items()},
        "extras": sorted(expected.extras),
        "rewrites": None if expected.rewrites is None else dataclasses.asdict(expected.rewrites),
    }


def _read(lock: Path, known: dict[str, Any]) -> Expected:
    rewrites = known["rewrites"]
    return Expected(
        lock=lock,
        required=known["required"],
        optional=known["optional"],
        sources={name: Source(kind=kind, location=location) for name, (kind, location) in known["sources"].items()},
        extras=frozenset((name, extra) for name, extra in known["extras"]),
        rewrites=None
        if rewrites is None
        else Rewrites(
            metadata=tuple(Metadata(**{**each, "requires": tuple(each["requires"])}) for each in rewrites["metadata"]),
            overrides=tuple(rewrites["overrides"]),
            excludes=tuple(rewrites["excludes"]),
        ),
    )


def _compute(lock: Path, environment: Mapping[str, str]) -> Expected:
    return expect(load_lock(lock), environment)
