"""Claim: no flipped bit and no cut of any file of a store passes ``verify`` or a restore.

In: a number of cases. Out: a table of cases by kind of file, and the total; exit 1 where a case passed, crashed, or was
blamed on another file. It damages a small store in a temporary directory with two signed snapshots: every bit of small
files, bits and cuts at random of the others, one case at a time, in one process:
``python benchmarks/cache_corruption.py --cases 10000``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cache_tools import damage


def main() -> int:
    """Damage and count; 1 where something passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="at least so many cases [default: 10000]")
    parser.add_argument("--restore-every", type=int, default=4, help="restore every so many cases too [default: 4]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.fsync = os.fdatasync = lambda _: None  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="cache-corruption-") as folder:
        root = Path(folder)
        os.environ["DFLASH_CACHE_TRUST"] = str(root / "trust")
        store = damage.make_store(root)
        readers = damage.Readers(store, root / "target", restore_every=arguments.restore_every)
        bits = 1 + arguments.cases // (2 * len(damage.files(store)))
        started = time.perf_counter()
        done: Counter[str] = Counter()
        wrong: list[str] = []
        while done.total() < arguments.cases:
            for case in damage.cases(store, bits=bits, cuts=bits // 8, seed=arguments.seed + done.total()):
                done[_kind(case.file.relative_to(store.root))] += 1
                wrong += readers.pass_over(case)
    for kind, count in sorted(done.items()):
        print(f"{kind:<12}{count:>8}")
    seconds = time.perf_counter() - started
    print(f"{'all':<12}{done.total():>8}  {len(wrong)} not noticed; {readers.restores} restored too; {seconds:.0f} s")
    for one in wrong[:20]:
        print(f"PASSED: {one}")
    return int(bool(wrong))


def _kind(path: Path) -> str:
    folder = path.parts[0]
    return {".sig": "signatures"}.get(path.suffix, "manifests") if folder == "snapshots" else folder


if __name__ == "__main__":
    raise SystemExit(main())
