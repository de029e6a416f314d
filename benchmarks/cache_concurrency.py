"""Eight processes snapshot, restore, prune and "train" against one store and one cache: no error, no loss.

In: minutes, processes. Out: what each kind did, and three counts that must be 0: errors, problems of the store, bad
files of the cache. Exit 1 where one is not. A "trainer" writes entries as torch does: a temporary file and a rename for
graph entries and sources, a direct write under torch's own lock for a shared object; it reads what it wrote before, as
a hit does. Every process dies and is started anew now and then: ``python benchmarks/cache_concurrency.py --minutes 5``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b32encode
from collections import Counter
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from synthetic_cache import elf

from cache_tools.errors import CorruptError
from cache_tools.fingerprint import INPUTS, KEY_VERSION, Fingerprint
from cache_tools.live import check_live
from cache_tools.prune import execute as prune
from cache_tools.prune_plan import Rules, plan_prune
from cache_tools.restore import execute as restore
from cache_tools.restore import plan_restore
from cache_tools.snapshot import snapshot
from cache_tools.store import create_store, open_store
from cache_tools.verify import verify_store
from envguard.errors import UsageError

HERE = Fingerprint(key_version=KEY_VERSION, values={one.name: f"some {one.name}" for one in INPUTS})
ROLES = ("train", "train", "snapshot", "snapshot", "restore", "restore", "prune", "restore")


class Work:
    """One process."""

    def __init__(self, root: Path, role: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.store, self.cache, self.own = root / "store", root / "cache", root / f"own{seed}"
        self.step = getattr(self, role)
        self.written: dict[str, bytes] = {}

    def train(self) -> str:
        """One graph: a shared object, a source, an entry; then a look at an older one."""
        name = f"c{self.random.getrandbits(60):x}"
        self._build(name, elf(self.random.randbytes(3000)))
        code = b"def call(): return %d\n" % self.random.getrandbits(60)
        key = _b32(code)
        self._rename(f"{key[:2]}/c{_b32(code.strip())}.py", code)
        graph = b"pickled graph " * 200 + code
        self._rename(f"fxgraph/{key[:2]}/f{key}/{_b32(graph)}", graph)
        path = self.random.choice(sorted(self.written))
        found = (self.cache / path).read_bytes()
        if found != self.written[path]:
            raise AssertionError(f"{path} is not what this process wrote")
        return "graphs"

    def _rename(self, path: str, data: bytes) -> None:
        file = self.cache / path
        file.parent.mkdir(parents=True, exist_ok=True)
        temp = file.parent / f".{os.getpid()}.{self.random.getrandbits(30)}.tmp"
        temp.write_bytes(data)
        temp.rename(file)
        self.written[path] = data

    def _build(self, name: str, data: bytes) -> None:
        locks = self.cache / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        path = f"{name[1:3]}/{name}.main.so"
        with (locks / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self.cache / path).parent.mkdir(exist_ok=True)
            with (self.cache / path).open("wb") as out:  # as a linker writes
                for at in range(0, len(data), 1000):
                    out.write(data[at : at + 1000])
                    out.flush()
                    time.sleep(0.001)
        self.written[path] = data

    def snapshot(self) -> str:
        """The whole cache under one of a few names."""
        try:
            snapshot(open_store(self.store), self.cache, name=f"run{self.random.randrange(4)}", fingerprint=HERE)
        except UsageError as error:
            if "nothing to snapshot" not in str(error):
                raise
        return "snapshots"

    def restore(self) -> str:
        """Merge into the cache in use, or swap one's own."""
        store = open_store(self.store)
        try:
            id_ = self.random.choice(store.ids())
            shared = self.random.random() < 0.5
            target, mode = (self.cache, "merge") if shared else (self.own, "replace")
            restore(plan_restore(store, id_, target, mode=mode, here=HERE))
        except IndexError:
            return "waits for a first snapshot"
        except (UsageError, CorruptError) as error:
            if id_ in open_store(self.store).ids():
                raise
            return f"restores refused since pruned ({type(error).__name__})"
        if not shared and (bad := check_live(self.own, deep=True)):
            raise AssertionError(f"restored {bad[0].path}: {bad[0].reason}")
        return "restores"

    def prune(self) -> str:
        """Keep a few; now and then everything that is no longer named goes at once."""
        time.sleep(self.random.uniform(0.1, 0.5))
        plan = plan_prune(open_store(self.store), Rules(keep_last=self.random.randrange(2, 6)))
        prune(plan)
        return "prunes"


def work(root: Path, role: str, seed: int, seconds: float) -> None:
    """Run one role until the time is up; print what it did."""
    one = Work(root, role, seed)
    done: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done[one.step()] += 1
    for what, count in done.items():
        print(f"{what}\t{count}", flush=True)


def main() -> int:
    """Start, kill, start again, count, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=len(ROLES))
    parser.add_argument("--dir", type=Path, help="where to work; removed at the end")
    parser.add_argument("--work", nargs=4, metavar=("ROOT", "ROLE", "SEED", "SECONDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        root, role, seed, seconds = arguments.work
        work(Path(root), role, int(seed), float(seconds))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        os.environ["DFLASH_CACHE_TRUST"] = f"{folder}/trust"
        return soak(Path(folder), arguments.minutes * 60, arguments.processes)


def soak(root: Path, seconds: float, processes: int) -> int:
    """Run all roles in ``root``; 1 where something was wrong."""
    create_store(root / "store")
    (root / "cache").mkdir(mode=0o700)
    done: Counter[str] = Counter()
    errors = kills = seed = 0
    end = time.monotonic() + seconds
    running: dict[int, tuple[subprocess.Popen[str], float | None]] = {}
    chance = random.Random(7)
    while running or time.monotonic() < end:
        left = end - time.monotonic()
        for slot in range(processes) if left > 0 else ():
            if slot not in running:
                seed += 1
                life = min(left, chance.uniform(0.05, 0.3) * seconds)
                command = [
                    sys.executable,
                    __file__,
                    "--work",
                    str(root),
                    ROLES[slot % len(ROLES)],
                    str(seed),
                    str(life),
                ]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                kill_at = time.monotonic() + chance.uniform(0.3, 1) * life if chance.random() < 0.25 else None
                running[slot] = process, kill_at
        for slot, (process, kill_at) in list(running.items()):
            if process.poll() is None and kill_at and time.monotonic() > kill_at:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            if process.poll() is None:
                continue
            out, err = process.communicate()
            if process.returncode not in (0, -signal.SIGKILL):
                errors += 1
                print(f"ERROR: {ROLES[slot % len(ROLES)]}: {err.strip().splitlines()[-1:]}", flush=True)
            for line in out.splitlines():
                what, count = line.split("\t")
                done[what] += int(count)
            del running[slot]
        time.sleep(0.02)
    problems = verify_store(root / "store").problems
    # A trainer that was killed while it "linked" leaves a cut shared object, as torch does; snapshots leave it out.
    bad = [file for file in check_live(root / "cache", deep=True) if not file.path.endswith(".so")]
    print(f"{processes} processes, {seconds:.0f} s, {kills} killed and started anew")
    print(", ".join(f"{count} {what}" for what, count in sorted(done.items())) or "(every process was killed)")
    for problem in problems:
        print(f"BAD: store: {problem.path}: {problem.reason}")
    for file in bad:
        print(f"BAD: cache: {file.path}: {file.reason}")
    print(f"errors: {errors}\nproblems of the store: {len(problems)}\nbad files of the cache: {len(bad)}")
    return int(bool(errors or problems or bad))


def _b32(data: bytes) -> str:
    return b32encode(sha256(data).digest())[:51].decode().lower()


if __name__ == "__main__":
    raise SystemExit(main())
