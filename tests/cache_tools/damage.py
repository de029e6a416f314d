"""Damage done to a store, case by case, and what must be noticed: shared by the tests and the benchmark.

In: a store. Out: one ``Case`` for each flipped bit or cut of each of its files, and for each case what the readers let
pass. Each case is undone before the next. Nothing here needs to survive a power cut: switch syncing off around it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cache_tools.errors import CorruptError, UntrustedError
from cache_tools.keyring import open_keyring, write_new_key
from cache_tools.plan import plan_restore
from cache_tools.restore import execute
from cache_tools.signing import load_private_key
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, create_store, open_store
from cache_tools.trust import sign
from cache_tools.verify import list_snapshots, verify_store

from . import helpers

HERE = helpers.fingerprint()
UNCHECKED = ("lock", "stamp")
"""Files with one of these in their name hold nothing that can be damaged."""
ALL_BITS = 128
"""Files of up to so many bytes have every bit flipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One file with other bytes."""

    file: Path
    what: str
    data: bytes


def make_store(root: Path) -> Store:
    """A store with two snapshots that share blobs, both signed by a trusted key; ``root`` also gets its cache."""
    cache = root / "cache"
    store = create_store(root / "store")
    write_new_key(root / "damage.key")
    key = load_private_key(root / "damage.key")
    open_keyring().add(f"damage-{key.public[-16:]}", key.public)
    helpers.make_cache(cache, triton=True)
    snapshot(store, cache, name="first", fingerprint=HERE)
    helpers.write(cache, "ab/cnew.main.cpp", b"// more")
    snapshot(store, cache, name="second", fingerprint=HERE)
    for name in store.names():
        sign(store, store.resolve(name), key)
    return store


def files(store: Store) -> list[Path]:
    """Every file of the store that must notice its damage."""
    found = (path for path in sorted(store.root.rglob("*")) if path.is_file() and path.stat().st_size)
    return [path for path in found if not any(word in path.name for word in UNCHECKED)]


def cases(store: Store, *, bits: int, cuts: int, seed: int) -> Iterator[Case]:
    """For each file every bit (small ones) or ``bits`` of them at random, and ``cuts`` lengths besides the ends."""
    chance = random.Random(seed)
    for file in files(store):
        original = file.read_bytes()
        count = len(original) * 8
        for bit in range(count) if len(original) <= ALL_BITS else sorted(chance.sample(range(count), min(bits, count))):
            changed = bytearray(original)
            changed[bit // 8] ^= 1 << bit % 8
            yield Case(file=file, what=f"bit {bit}", data=bytes(changed))
        lengths = {0, 1, len(original) - 1} | {chance.randrange(len(original)) for _ in range(cuts)}
        for length in sorted(lengths):
            yield Case(file=file, what=f"cut to {length}", data=original[:length])
        yield Case(file=file, what="one byte more", data=original + b"\0")


class Readers:
    """Verify and restore, tried on damage case by case.

    Every case is verified. Every ``restore_every``-th is restored too, until a snapshot is refused, and every fifth of
    those goes on to the other snapshots, which must be refused or come back right. ``target`` must not exist, and does
    not after a case.
    """

    def __init__(self, store: Store, target: Path, *, restore_every: int) -> None:
        self.store = store
        self.target = target
        self.restore_every = restore_every
        self.restores = 0
        self._whole = {name: self._restore(name) for name in store.names()}
        self._refused_by: dict[Path, str] = {}
        self._cases = 0

    def pass_over(self, case: Case) -> list[str]:
        """What goes wrong: empty if every reader noticed the damage, named the file, and wrote nothing wrong."""
        original = case.file.read_bytes()
        where = case.file.relative_to(self.store.root).as_posix()
        self._cases += 1
        case.file.write_bytes(case.data)
        try:
            wrong = list(self._try(case.file, where))
        except Exception as error:  # the very thing that must not happen: it is a case that failed, and is told
            wrong = [f"{type(error).__name__}: {error}"]
        finally:
            case.file.write_bytes(original)
            shutil.rmtree(self.target, ignore_errors=True)
        return [f"{where}, {case.what}: {one}" for one in wrong]

    def _try(self, file: Path, where: str) -> Iterator[str]:
        named = [problem.path for problem in verify_store(self.store.root).problems]
        if where not in named:
            yield f"verify names {named}"
        if self._cases % self.restore_every:
            return
        self.restores += 1
        try:
            list_snapshots(open_store(self.store.root))
        except CorruptError as error:
            if str(file) not in str(error):
                yield f"opening says: {error}"
            return
        likely = self._refused_by.get(file, "")
        refused = False
        for name in sorted(self._whole, key=lambda name: name != likely):
            try:
                back = self._restore(name)
            except (CorruptError, UntrustedError) as error:
                refused, self._refused_by[file] = True, name
                if str(file) not in str(error):
                    yield f"restoring {name} says: {error}"
                if self.target.exists():
                    yield f"restoring {name} left something"
            else:
                if back != self._whole[name]:
                    yield f"{name} came back changed"
            if refused and self.restores % 5:
                return
        if not refused:
            yield "no restore met it"

    def _restore(self, name: str) -> dict[str, bytes]:
        execute(plan_restore(open_store(self.store.root), name, self.target, here=HERE))
        found = helpers.tree(self.target)
        shutil.rmtree(self.target)
        return found
