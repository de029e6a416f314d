"""How fast snapshot and restore are, beside ``tar --zstd`` and ``cp -r`` made as durable: medians of alternating runs.

In: a cache shaped like the real one (see synthetic_cache.py), or ``--cache DIR``; whole processes, pinned to two cores.
Out: a table of seconds, ratios and limits; the floor (read and hash, compress, write and sync, start of Python) and the
gap; exit 1 where a limit is exceeded. ``--large`` shows instead that the cost is linear up to 5 GB in 100,000 files.
Run it on an idle machine: ``python benchmarks/cache_speed.py``. Nothing is deleted between timed runs: ext4 is slow to
create files just after many were deleted.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent))
from synthetic_cache import grow, make_cache

from cache_tools import blobs

T = TypeVar("T")
RUNS = 5
PYTHON = Path(sys.executable)
TOOL = f"{shlex.quote(str(PYTHON.with_name('cache-tools')))}"
# With this developer's variable every start would compile our sources anew.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(command: str) -> tuple[float, float]:
    """Wall seconds and peak MB of a shell command that must succeed, on two cores."""
    os.sync()
    started = time.perf_counter()
    process = subprocess.Popen(["bash", "-ec", command], env=ENVIRON, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {command}")
    return seconds, usage.ru_maxrss / 1000


class Bench:
    """Runs in a work directory, and what they took."""

    def __init__(self, work: Path, cache: Path) -> None:
        self.work, self.cache = work, cache
        self.seconds: dict[str, list[float]] = {}
        self.megabytes: dict[str, float] = {}
        self.failed = False

    def time(self, name: str, command: str) -> None:
        """One run."""
        seconds, megabytes = run(command)
        self.seconds.setdefault(name, []).append(seconds)
        self.megabytes[name] = max(self.megabytes.get(name, 0), megabytes)

    def median(self, name: str) -> float:
        """Of the runs so far."""
        return statistics.median(self.seconds[name])

    def alternate(self, runs: int) -> None:
        """Every contender once in each round, so that a busy moment hits all of them."""
        cache = shlex.quote(str(self.cache))
        for number in range(runs):
            at = self.work / f"run{number}"
            at.mkdir()
            self.time("tar --zstd + sync -f", f"tar --zstd -cf {at}/a.tar.zst -C {cache} . && sync -f {at}/a.tar.zst")
            self.time("snapshot", f"{TOOL} snapshot {cache} --name a --store {at}/store")
            self.time("snapshot, unchanged", f"{TOOL} snapshot {cache} --name a --store {at}/store")
            self.time("tar -x + sync -f", f"mkdir {at}/x && tar --zstd -xf {at}/a.tar.zst -C {at}/x && sync -f {at}/x")
            self.time("cp -r + sync -f", f"cp -r {cache} {at}/y && sync -f {at}/y")
            self.time("restore", f"{TOOL} restore a --to {at}/z --store {at}/store")

    def claim(self, what: str, value: float, limit: float, unit: str) -> None:
        """One line; a value above its limit fails the run."""
        bad = value > limit
        self.failed = self.failed or bad
        print(f"{what:<52}{value:>8.2f}{unit:<3}{limit:>8.2f}{unit:<3}{limit - value:>8.2f}  {'FAIL' if bad else 'ok'}")

    def report(self) -> None:
        """The table, the ratios, the space."""
        print(f"\n{'seconds':<26}{'median':>8}{'min':>8}{'max':>8}{'peak MB':>9}")
        for name, seconds in self.seconds.items():
            row = f"{statistics.median(seconds):>8.3f}{min(seconds):>8.3f}{max(seconds):>8.3f}"
            print(f"{name:<26}{row}{self.megabytes[name]:>9.0f}")
        print(f"\n{'':<52}{'value':>8}{'':<3}{'limit':>8}{'':<3}{'gap':>8}")
        tar, untar, copy = (self.median(n) for n in ("tar --zstd + sync -f", "tar -x + sync -f", "cp -r + sync -f"))
        self.claim("snapshot / (tar --zstd + sync -f)", self.median("snapshot") / tar, 1 / 1.3, "x")
        self.claim("restore / (tar -x + sync -f)", self.median("restore") / untar, 1.0, "x")
        self.claim("restore / (cp -r + sync -f)", self.median("restore") / copy, 1.3, "x")
        self.claim("snapshot, unchanged", self.median("snapshot, unchanged"), 0.4, "s")
        peak = max(self.megabytes[name] for name in ("snapshot", "snapshot, unchanged", "restore"))
        self.claim("peak memory", peak, 150, "MB")

    def growth(self) -> None:
        """Ten snapshots of a cache that grows by a hundredth each time, against one snapshot of the last state."""
        cache, many, one = self.work / "growing", self.work / "many", self.work / "one"
        subprocess.run(["cp", "-r", str(self.cache), str(cache)], check=True)
        for step in range(10):
            apart(grow, cache, step)
            run(f"{TOOL} snapshot {cache} --name grow --store {many} 2>/dev/null")
        run(f"{TOOL} snapshot {cache} --name last --store {one} 2>/dev/null")
        self.claim("space of ten snapshots / of the last one", disk(many) / disk(one), 1.3, "x")


def apart(function: Callable[..., T], *arguments: object) -> T:
    """``function`` in a process of its own: what this one holds would be counted as the peak of every child."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def disk(store: Path) -> int:
    """Bytes of a store's files."""
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())


def measure(cache: Path) -> tuple[int, int]:
    """Files of a cache, and their bytes."""
    sizes = [path.stat().st_size for path in cache.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def floor(work: Path, cache: Path) -> None:
    """What the parts cost by themselves in this process on two threads: no tool can do with less of them."""
    files = [path for path in cache.rglob("*") if path.is_file()]

    def timed(what: str, function: object) -> None:
        started = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            sizes = list(pool.map(function, [files[at::64] for at in range(64)]))  # type: ignore[arg-type]
        print(f"floor: {what:<38}{time.perf_counter() - started:>8.3f} s  ({sum(sizes) / 1e6:.0f} MB)")

    def read(some: list[Path]) -> int:
        return sum(len(path.read_bytes()) for path in some)

    def digest(some: list[Path]) -> int:
        contents = map(Path.read_bytes, some)
        return sum(len(hashlib.sha256(data).digest()) and len(data) for data in contents)

    def compress(some: list[Path]) -> int:
        compressor = blobs.compressor()
        contents = map(Path.read_bytes, some)
        return sum(len(hashlib.sha256(data).digest()) and len(compressor.compress(data)) for data in contents)

    timed("read", read)
    timed("read + hash", digest)
    timed("read + hash + compress", compress)
    started = time.perf_counter()
    with (work / "floor").open("wb") as out:
        for path in files[:: max(1, len(files) // 700)]:
            out.write(path.read_bytes())
        out.flush()
        os.fsync(out.fileno())
    print(f"floor: {'write and sync a seventh, as one file':<38}{time.perf_counter() - started:>8.3f} s")
    print(f"floor: {'start Python and the command line':<38}{run(f'{TOOL} --help')[0]:>8.3f} s", flush=True)


def large(work: Path) -> int:
    """Snapshot, unchanged snapshot and restore at growing sizes: seconds a GB and memory."""
    print(f"{'files':>8}{'GB':>7}{'snapshot':>12}{'s/GB':>7}{'MB':>6}{'again':>9}{'restore':>11}{'s/GB':>7}{'MB':>6}")
    for files in (5_000, 25_000, 100_000):
        cache, store = work / f"cache{files}", work / f"store{files}"
        count, size = apart(make_cache, cache, files, 0, 50)
        gb = size / 1e9
        first, memory = run(f"{TOOL} snapshot {cache} --name a --store {store}")
        again, _ = run(f"{TOOL} snapshot {cache} --name a --store {store}")
        back, back_memory = run(f"{TOOL} restore a --to {work}/out{files} --store {store}")
        left = f"{count:>8}{gb:>7.2f}{first:>12.2f}{first / gb:>7.2f}{memory:>6.0f}"
        print(f"{left}{again:>9.2f}{back:>11.2f}{back / gb:>7.2f}{back_memory:>6.0f}", flush=True)
    return 0


def main() -> int:
    """Measure and print; 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--cache", type=Path, help="a real cache directory instead of a synthetic one")
    parser.add_argument("--dir", type=Path, help="where to work; removed at the end")
    parser.add_argument("--large", action="store_true", help="show that cost is linear to 5 GB and 100,000 files")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        work = Path(folder)
        ENVIRON["DFLASH_CACHE_TRUST"] = f"{folder}/trust"
        if arguments.large:
            return large(work)
        cache = arguments.cache or work / "cache"
        count, size = apart(measure, cache) if arguments.cache else apart(make_cache, cache, arguments.files)
        print(
            f"Python {sys.version.split()[0]}, {arguments.runs} runs each, {count} files, {size / 1e6:.0f} MB",
            flush=True,
        )
        apart(floor, work, cache)
        bench = Bench(work, cache)
        bench.alternate(arguments.runs)
        bench.report()
        if not arguments.cache:
            bench.growth()
        archive = work / "run0" / "a.tar.zst"
        print(f"store {disk(work / 'run0' / 'store') / 1e6:.1f} MB, tar --zstd {archive.stat().st_size / 1e6:.1f} MB")
        return int(bench.failed)


if __name__ == "__main__":
    raise SystemExit(main())
