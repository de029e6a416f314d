"""SIGKILL at random write steps of snapshot, restore and prune, a thousand times, on one store that lives through it.

In: a number of kills and a seed. Out: what was killed where, and three counts that must be 0: listed snapshots that do
not verify, restored files that torch would trust wrongly, snapshots lost. Exit 1 where one is not. A step is a write
(half of it), an fsync, a rename, a link, an unlink, a mkdir or an rmdir; see ``envguard/fsops.py``. It forks, so that a
kill costs milliseconds: ``python benchmarks/crash_soak.py --kills 1000``. It does not simulate a power loss.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from synthetic_cache import b32, make_cache

from cache_tools.bundled import folders_of, kernels_in
from cache_tools.fingerprint import INPUTS, KEY_VERSION, Fingerprint
from cache_tools.kinds import GRAPHS, NOT_KEPT, kind_of
from cache_tools.live import check_live
from cache_tools.pins import pin
from cache_tools.prune import execute as prune
from cache_tools.prune_plan import Rules, plan_prune
from cache_tools.restore import execute as restore
from cache_tools.restore import plan_restore
from cache_tools.snapshot import snapshot
from cache_tools.store import create_store, open_store
from cache_tools.verify import list_snapshots, verify_store
from envguard import fsops

HERE = Fingerprint(key_version=KEY_VERSION, values={one.name: f"some {one.name}" for one in INPUTS})


class Soak:
    """One store, some caches, and what must be in the store."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.store = root / "store"
        self.contents: dict[str, dict[str, bytes]] = {}
        """Snapshot → the files that it must give back."""
        self.killed: Counter[str] = Counter()
        self.unlisted = self.untrusted = self.lost = self.finished = 0
        create_store(self.store)

    def round(self) -> None:
        """One operation, usually killed; then everything is checked and the operation done again to its end."""
        what = self.random.choice((self.snapshot, self.snapshot, self.restore, self.restore, self.prune))
        what()

    def snapshot(self) -> None:
        """A cache that grows a little, or a new one."""
        cache = self.root / f"cache{self.random.randrange(4)}"
        if self.random.random() < 0.1:
            shutil.rmtree(cache, ignore_errors=True)
        make_cache(cache, files=self.random.choice((12, 24, 60)), seed=self.random.randrange(1 << 30), mean_kb=3)
        if self.random.random() < 0.04:  # what is so large streams into a pack of its own
            write(
                cache / "triton" / "0" / ("L" * 52) / f"{self.random.randrange(9)}.cubin",
                self.random.randbytes(5 << 20),
            )
        if self.random.random() < 0.04:
            graph = self.random.randbytes(5 << 20)
            write(cache / "fxgraph" / "lg" / f"flarge{self.random.randrange(9)}" / b32(graph), graph)
        name = f"name{self.random.randrange(6)}"

        def take() -> None:
            snapshot(open_store(self.store), cache, name=name, fingerprint=HERE)

        self.kill("snapshot", take)
        take()
        store = open_store(self.store)
        id_ = store.read_ref(name)
        kept = {entry.path for entry in store.read_manifest(id_).entries}
        files = {
            path: data for path, data in tree(cache).items() if kind_of(path) not in NOT_KEPT and "__grp__" not in path
        }
        self.contents[id_] = {path: data for path, data in files.items() if path in kept}
        kernels = {kernel for path in kept if kind_of(path) in GRAPHS for kernel in kernels_in([files[path]])}
        held = {folder for kernel in kernels for folder in folders_of(kernel)}
        for path in files.keys() - kept:
            if path.rpartition("/")[0] not in held:
                self.report(f"{path} is in no snapshot and in no graph entry")
                self.lost += 1
        if self.random.random() < 0.01:
            pin(open_store(self.store), id_)

    def restore(self) -> None:
        """Into nothing, into a cache that lacks files and has broken ones, or swapped."""
        ids = sorted(self.contents)
        if not ids:
            return
        id_ = self.random.choice(ids)
        wanted = self.contents[id_]
        target = self.root / "target"
        mode = self.random.choice(("absent", "merge", "replace"))
        shutil.rmtree(target, ignore_errors=True)
        if mode != "absent":
            target.mkdir(mode=0o700)
            for path in self.random.sample(sorted(wanted), len(wanted) // 2):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                broken = path.endswith((".so", ".py")) or path.startswith(("fxgraph", "aotautograd"))
                (target / path).write_bytes(wanted[path][:-7] if broken else wanted[path])
        before = tree(target)

        def put() -> None:
            restore(plan_restore(open_store(self.store), id_, target, mode=mode, here=HERE))

        where = self.kill(f"restore {mode}", put)
        found = {path: data for path, data in tree(target).items() if kind_of(path) not in NOT_KEPT}
        for path, data in found.items():
            if "__grp__" not in path and data not in (wanted.get(path), before.get(path)):
                self.report(f"{path} is half written after {where}")
                self.untrusted += 1
        new = {file.path for file in check_live(target, deep=True)} - before.keys() if target.exists() else set()
        self.untrusted += len(new)
        if mode != "merge" and target.exists() and found.keys() - before.keys() and not wanted.keys() <= found.keys():
            self.report(f"a part of the tree is visible after {where}")
            self.untrusted += 1
        put_again = "merge" if mode == "absent" and target.exists() else mode
        restore(plan_restore(open_store(self.store), id_, target, mode=put_again, here=HERE))
        if not wanted.items() <= tree(target).items():
            self.report(f"restoring again after {where} does not complete")
            self.untrusted += 1
        if [path for path in (*self.root.iterdir(), *target.iterdir()) if path.name.startswith(".tmp-restore")]:
            self.report(f"leavings stay after {where}")
            self.untrusted += 1

    def prune(self) -> None:
        """With rules that keep some of many."""
        rules = Rules(keep_last=self.random.randrange(2, 9), grace=self.random.choice((0.0, 3600.0)))
        may_go = {one.id for one in plan_prune(open_store(self.store), rules).removed}

        def go() -> None:
            prune(plan_prune(open_store(self.store), rules))

        where = self.kill("prune", go)
        self.check(where, may_go)
        go()
        for id_ in may_go:
            self.contents.pop(id_, None)

    def kill(self, what: str, action: Callable[[], None]) -> str:
        """Run ``action`` in a child that dies at a random step; check the store."""
        step = int(self.random.lognormvariate(3.2, 1.0)) + 1
        child = os.fork()
        if child == 0:
            counter = itertools.count(1)

            def trip(_name: str) -> None:
                if next(counter) == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            fsops.trip = trip
            try:
                action()
            except BaseException as error:
                print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            self.killed[what] += 1
        elif os.WEXITSTATUS(status) == 0:
            self.finished += 1
        else:
            raise SystemExit(f"{what} failed by itself")
        where = f"{what} killed at step {step}"
        if what != "prune":
            self.check(where, set())
        return where

    def check(self, where: str, may_go: set[str]) -> None:
        """Everything listed verifies; nothing is lost."""
        for problem in verify_store(self.store).problems:
            self.report(f"{problem.path} {problem.reason} after {where}")
            self.unlisted += 1
        self.unlisted += sum(one.problem is not None for one in list_snapshots(open_store(self.store)))
        for id_ in self.contents.keys() - may_go - set(open_store(self.store).ids()):
            self.report(f"snapshot {id_[:12]} is gone after {where}")
            self.lost += 1

    def report(self, line: str) -> None:
        """A finding, at once."""
        print(f"BAD: {line}", flush=True)


def write(file: Path, data: bytes) -> None:
    """With the folders that it needs."""
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_bytes(data)


def tree(root: Path) -> dict[str, bytes]:
    """Every file under ``root`` with its content."""
    return {
        os.path.relpath(os.path.join(folder, file), root): Path(folder, file).read_bytes()
        for folder, _, files in os.walk(root)
        for file in files
    }


def main() -> int:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, help="where to work; removed at the end")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as work:
        os.environ["DFLASH_CACHE_TRUST"] = f"{work}/trust"
        soak, told = Soak(Path(work), arguments.seed), 0
        while soak.killed.total() < arguments.kills:
            soak.round()
            if soak.killed.total() >= told + 100:
                told = soak.killed.total()
                print(f"{told} kills, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        print(f"kills: {soak.killed.total()} ({', '.join(f'{n} {what}' for what, n in sorted(soak.killed.items()))})")
        print(f"operations that ended before their step: {soak.finished}")
        print(f"snapshots in the store at the end: {len(open_store(soak.store).ids())}")
    print(f"listed snapshots that do not verify: {soak.unlisted}")
    print(f"restored files that torch would trust wrongly: {soak.untrusted}")
    print(f"snapshots lost: {soak.lost}")
    print(f"{time.monotonic() - started:.0f} s, seed {arguments.seed}")
    return int(bool(soak.unlisted or soak.untrusted or soak.lost))


if __name__ == "__main__":
    raise SystemExit(main())
