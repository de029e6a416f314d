"""Every file of a store, flipped and cut: noticed, named, and never restored.

``benchmarks/cache_corruption.py`` does the same ten thousand times.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cache_tools.store import Store
from cache_tools.verify import verify_store

from . import damage


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{name}", lambda _: None)
    return damage.make_store(tmp_path)


def test_a_healthy_store_has_every_kind_of_file(signed: Store) -> None:
    assert verify_store(signed.root).problems == ()
    folders = {file.relative_to(signed.root).parts[0] for file in damage.files(signed)}
    assert {"config.json", "refs", "snapshots"} < folders
    assert {file.suffix for file in damage.files(signed)} >= {".json", ".sig"}


def test_no_damage_passes(signed: Store, tmp_path: Path) -> None:
    readers = damage.Readers(signed, tmp_path / "target", restore_every=11)
    before = {path: path.read_bytes() for path in damage.files(signed)}
    done: Counter[Path] = Counter()
    wrong: list[str] = []
    for case in damage.cases(signed, bits=1000 // len(before), cuts=8, seed=1):
        done[case.file] += 1
        wrong += readers.pass_over(case)
    assert wrong == []
    assert set(done) == set(before)
    assert done.total() >= 2000
    assert {path: path.read_bytes() for path in damage.files(signed)} == before
    assert verify_store(signed.root).problems == ()


def test_the_check_itself_can_fail(signed: Store, tmp_path: Path) -> None:
    readers = damage.Readers(signed, tmp_path / "target", restore_every=1)
    (file, *_) = damage.files(signed)
    harmless = damage.Case(file=file, what="nothing", data=file.read_bytes())
    assert len(readers.pass_over(harmless)) == 2
