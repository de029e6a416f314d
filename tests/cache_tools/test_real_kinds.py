"""Every kind of file of a real cache: classified, judged, damaged in every way, repaired, moved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_tools.kinds import Kind
from cache_tools.live import check_live, quarantine
from cache_tools.notes import notes
from cache_tools.observe import observe
from cache_tools.restore import execute, plan_restore
from cache_tools.scan import scan
from cache_tools.snapshot import snapshot
from cache_tools.store import Store

from .conftest import Made, RunTorch

pytestmark = pytest.mark.slow


@pytest.fixture
def cache(rich_cache: Path, tmp_path: Path) -> Path:
    """A copy to damage; triton's group files still point into the original."""
    return Path(shutil.copytree(rich_cache, tmp_path / "cache"))


def first(cache: Path, kind: Kind, ending: str = "") -> Path:
    return next(cache / one.path for one in scan(cache).entries if one.kind is kind and one.path.endswith(ending))


def test_every_file_has_its_kind_and_is_healthy(rich_cache: Path) -> None:
    found = scan(rich_cache)
    kinds = {entry.kind for entry in found.entries}
    written_elsewhere = {Kind.KEYS, Kind.UNKNOWN}
    assert kinds == set(Kind) - {Kind.LOCK, Kind.TEMP, Kind.HEADER} - written_elsewhere
    assert found.skipped.keys() == {"lock"}
    assert found.settled
    assert check_live(rich_cache, deep=True) == ()
    assert notes(rich_cache, found) == ()


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def damage_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere.txt"))
    file.symlink_to("elsewhere.txt")


def damage_open(file: Path) -> None:
    file.chmod(0o666)


def damage_foreign(file: Path) -> None:
    file.with_name("0000").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize(
    ("damage", "kind", "ending", "says"),
    [
        (damage_empty, Kind.NATIVE, ".so", "a linker was killed"),
        (damage_half, Kind.NATIVE, ".so", "cut: "),
        (damage_empty, Kind.FXGRAPH, "", "its writer was killed"),
        (damage_half, Kind.FXGRAPH, "", "does not hash to its name"),
        (damage_flip, Kind.FXGRAPH, "", "does not hash to its name"),
        (damage_flip, Kind.AOTAUTOGRAD, "", "does not hash to its name"),
        (damage_flip, Kind.SOURCE, ".py", "does not hash to its name"),
        (damage_half, Kind.AUTOTUNE, "", "no valid JSON"),
        (damage_half, Kind.GEMM, "", "no valid JSON"),
        (damage_empty, Kind.TRITON, ".cubin", "its writer was killed"),
        (damage_link, Kind.NATIVE, ".so", "a link"),
        (damage_open, Kind.PGO, "", "writable by everybody"),
        (damage_foreign, Kind.AOTAUTOGRAD, "", "a foreign pickle"),
        (damage_foreign, Kind.FXGRAPH, "", "a foreign pickle"),
    ],
)
def test_each_damage_is_told_and_repaired(
    cache: Path, damage: Callable[[Path], None], kind: Kind, ending: str, says: str
) -> None:
    victim = first(cache, kind, ending)
    damage(victim)
    bad = check_live(cache, deep=True)
    expected = victim.with_name("0000") if damage is damage_foreign else victim
    assert [file.path for file in bad] == [expected.relative_to(cache).as_posix()]
    assert says in bad[0].reason
    assert [file.path for file in quarantine(cache, bad).moved] == [bad[0].path]
    assert check_live(cache, deep=True) == ()


def test_all_of_it_moves_and_triton_finds_its_files_there(rich_cache: Path, store: Store, tmp_path: Path) -> None:
    taken = snapshot(store, rich_cache, name="rich", fingerprint=observe())
    target = tmp_path / "moved"
    execute(plan_restore(store, taken.id, target))
    assert [(one.path, one.kind) for one in scan(target).entries] == [
        (one.path, one.kind) for one in scan(rich_cache).entries
    ]
    children = json.loads(first(target, Kind.TRITON, "__grp__add_one.json").read_text())["child_paths"]
    assert len(children) == 7
    assert all(Path(path).is_relative_to(target) and Path(path).is_file() for path in children.values())


def test_after_a_repair_torch_builds_what_is_missing_and_runs(made: Made, run_torch: RunTorch, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(made.cache_dir, tmp_path / "poisoned"))
    damage_half(first(cache, Kind.NATIVE, ".so"))
    damage_flip(first(cache, Kind.SOURCE, ".py"))
    damage_foreign(first(cache, Kind.AOTAUTOGRAD))
    bad = check_live(cache, deep=True)
    assert len(quarantine(cache, bad).moved) == len(bad) == 3
    healed = run_torch(cache)
    assert (healed["misses"], healed["loss"], healed["grad"]) == (0, made.result["loss"], made.result["grad"])
    assert check_live(cache, deep=True) == ()
