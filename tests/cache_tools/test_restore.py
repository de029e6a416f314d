"""Restoring into nothing, into a cache that is there, and into places that are not ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cache_tools.errors import CorruptError, IncompatibleError, StorageError
from cache_tools.plan import Action
from cache_tools.restore import best_match, execute, plan_restore
from cache_tools.snapshot import snapshot
from cache_tools.store import Store
from cache_tools.trust import record_own
from envguard import fsops
from envguard.errors import UsageError
from envguard.frozen import replace

from . import helpers

HERE = helpers.fingerprint()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def filled(store: Store, cache: Path) -> Store:
    snapshot(store, cache, name="run", fingerprint=HERE, compile_id="two layers")
    return store


def kept(cache: Path) -> dict[str, bytes]:
    return {
        path: data for path, data in helpers.tree(cache).items() if not path.startswith("locks/") and ".tmp" not in path
    }


def test_into_nothing_the_whole_cache_appears(filled: Store, cache: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "new"
    done = execute(plan_restore(filled, "run", target, here=HERE))
    assert helpers.tree(target) == kept(cache)
    assert (done.added, done.present, done.bytes) == (5, 0, sum(map(len, kept(cache).values())))
    assert target.stat().st_mode & 0o777 == 0o700
    assert os.access(target / helpers.NATIVE, os.X_OK)
    assert not (target / helpers.SOURCE_CPP).stat().st_mode & 0o111
    assert [path.name for path in target.parent.iterdir()] == ["new"], "no staging left"


def test_a_merge_adds_repairs_and_keeps(filled: Store, cache: Path) -> None:
    wanted = kept(cache)
    graph = next(path for path in wanted if path.startswith("fxgraph"))
    joint = next(path for path in wanted if path.startswith("aot"))
    (cache / joint).unlink()
    (cache / graph).write_bytes(b"rotten")
    (cache / helpers.NATIVE).write_bytes(b"")
    (cache / helpers.SOURCE_CPP).write_bytes(b"// another file that may be right")
    helpers.write(cache, "zz/cmine.py", b"mine")
    plan = plan_restore(filled, "run", cache, here=HERE)
    assert {action: plan.count(action) for action in Action} == {"add": 1, "repair": 2, "present": 1, "keep": 1}
    done = execute(plan)
    assert (done.added, done.repaired, done.present, done.kept) == (1, 2, 1, 1)
    found = kept(cache)
    assert found.pop("zz/cmine.py") == b"mine"
    assert found.pop(helpers.SOURCE_CPP) == b"// another file that may be right"
    assert found == {path: data for path, data in wanted.items() if path != helpers.SOURCE_CPP}


def test_a_mapped_shared_object_is_replaced_and_never_written_to(filled: Store, cache: Path) -> None:
    victim = cache / helpers.NATIVE
    victim.write_bytes(helpers.elf()[:-1])
    with victim.open("rb") as mapped:
        execute(plan_restore(filled, "run", cache, here=HERE))
        assert mapped.read() == helpers.elf()[:-1], "the old file, unlinked, is as it was"
    assert victim.read_bytes() == helpers.elf()


def test_replace_swaps_the_directory(filled: Store, cache: Path) -> None:
    wanted = kept(cache)
    helpers.write(cache, "zz/cmine.py", b"mine")
    execute(plan_restore(filled, "run", cache, mode="replace", here=HERE))
    assert helpers.tree(cache) == wanted
    assert not [path for path in cache.parent.iterdir() if path.name.startswith(".tmp")]


@pytest.mark.parametrize("foreign", ["thesis.txt", "notes/deep/a.bin", "src/main.py", "lib/libown.so", "data"])
def test_replace_refuses_what_is_no_cache(filled: Store, cache: Path, tmp_path: Path, foreign: str) -> None:
    if foreign == "data":
        (cache / foreign).symlink_to(tmp_path)
    else:
        helpers.write(cache, foreign, b"years of work")
    before = helpers.tree(cache)
    with pytest.raises(UsageError, match=f"holds {foreign}, which is not of a compile cache"):
        plan_restore(filled, "run", cache, mode="replace", here=HERE)
    execute(plan_restore(filled, "run", cache, here=HERE))
    assert helpers.tree(cache) == before


def test_replace_looks_again_before_it_swaps(filled: Store, cache: Path) -> None:
    plan = plan_restore(filled, "run", cache, mode="replace", here=HERE)
    assert plan.removed == len(helpers.tree(cache))
    helpers.write(cache, "thesis.txt", b"years of work")
    with pytest.raises(UsageError, match=r"holds thesis\.txt"):
        execute(plan)
    assert (cache / "thesis.txt").read_bytes() == b"years of work"


@pytest.mark.parametrize("mode", ["merge", "replace", "absent"])
@pytest.mark.parametrize("place", ["store", "store/blobs", "store/new/deep", "trust", "trust/own", ".", "link/blobs"])
def test_the_store_and_the_trust_directory_are_no_place_for_a_cache(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mode: str
) -> None:
    monkeypatch.setenv("DFLASH_CACHE_TRUST", str(tmp_path / "trust"))
    helpers.make_cache(tmp_path / "cache")
    snapshot(store, tmp_path / "cache", name="run", fingerprint=HERE)
    (tmp_path / "link").symlink_to(store.root)
    with pytest.raises(UsageError, match=r"(is|contains|lies in) the (store|trust directory) .*give another place"):
        plan_restore(store, "run", tmp_path / place, mode=mode, here=HERE)


def test_the_root_is_no_target(filled: Store) -> None:
    with pytest.raises(UsageError, match="root of the file system"):
        plan_restore(filled, "run", Path("/"), here=HERE)


def test_absent_refuses_what_is_there(filled: Store, cache: Path) -> None:
    with pytest.raises(UsageError, match="exists"):
        plan_restore(filled, "run", cache, mode="absent", here=HERE)


def test_a_plan_changes_nothing(filled: Store, tmp_path: Path) -> None:
    plan_restore(filled, "run", tmp_path / "new", here=HERE)
    assert not (tmp_path / "new").exists()


def test_another_machine_is_refused_with_fields_and_reasons(filled: Store, tmp_path: Path) -> None:
    plan = plan_restore(filled, "run", tmp_path / "new", here=helpers.fingerprint(cpu_isa="avx512", driver="1"))
    with pytest.raises(IncompatibleError, match=r"cpu_isa is 'some cpu_isa' there and 'avx512' here \(.*wrong numbers"):
        execute(plan)
    assert not (tmp_path / "new").exists()
    assert execute(plan, force=True).added == 5


@pytest.mark.parametrize("mode", ["merge", "replace"])
def test_a_corrupt_blob_is_named_and_nothing_is_touched(filled: Store, cache: Path, mode: str) -> None:
    for path in kept(cache):
        (cache / path).unlink()
    entry = max(filled.read_manifest(filled.resolve("run")).entries, key=lambda one: one.path)
    blob = filled.blob_path(entry.sha256)
    blob.write_bytes(blob.read_bytes()[:40])
    before = helpers.tree(cache)
    with pytest.raises(CorruptError, match=blob.name):
        execute(plan_restore(filled, "run", cache, mode=mode, here=HERE))
    assert helpers.tree(cache) == before


def test_links_are_not_followed(filled: Store, cache: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache)
    with pytest.raises(UsageError, match="is a link"):
        plan_restore(filled, "run", link, here=HERE)
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "iq").symlink_to(outside)
    with pytest.raises(UsageError, match="link"):
        execute(plan_restore(filled, "run", target, here=HERE))
    assert list(outside.iterdir()) == []


def test_a_place_that_everybody_can_write_to_is_refused(filled: Store, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for target in (shared, shared / "new"):
        with pytest.raises(UsageError, match="writable by everybody"):
            plan_restore(filled, "run", target, here=HERE)
    shared.chmod(0o1777)
    execute(plan_restore(filled, "run", shared / "new", here=HERE))


def test_a_place_of_somebody_else_is_refused(filled: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_tools.target.os.geteuid", lambda: 12345)
    with pytest.raises(UsageError, match=r"belongs to user \d+"):
        plan_restore(filled, "run", cache, here=HERE)


def test_triton_groups_point_into_the_new_place(store: Store, tmp_path: Path) -> None:
    cache, target = tmp_path / "gpu", tmp_path / "moved"
    helpers.make_cache(cache, triton=True)
    snapshot(store, cache, name="gpu", fingerprint=HERE)
    execute(plan_restore(store, "gpu", target, here=HERE))
    group = json.loads((target / "triton/0/HASH/__grp__kernel.json").read_text())
    assert group == {"child_paths": {"kernel.cubin": f"{target}/triton/0/HASH/kernel.cubin"}}


def test_a_second_restore_finds_triton_groups_present(store: Store, tmp_path: Path) -> None:
    cache, target = tmp_path / "gpu", tmp_path / "moved"
    helpers.make_cache(cache, triton=True)
    snapshot(store, cache, name="gpu", fingerprint=HERE)
    execute(plan_restore(store, "gpu", target, here=HERE))
    for place in (cache, target):
        done = execute(plan_restore(store, "gpu", place, here=HERE))
        assert (done.added, done.repaired, done.present, done.kept) == (0, 0, 9, 0)
    group = target / "triton/0/HASH/__grp__kernel.json"
    group.write_bytes((cache / "triton/0/HASH/__grp__kernel.json").read_bytes())
    done = execute(plan_restore(store, "gpu", target, here=HERE))
    assert (done.present, done.kept) == (8, 1), "one that points into another directory"


@pytest.mark.parametrize("what", ["pipe", "folder", "dangling link", "link to a device"])
def test_what_is_no_file_where_one_belongs_is_refused(filled: Store, cache: Path, what: str) -> None:
    place = cache / helpers.NATIVE
    place.unlink()
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/null" if what == "link to a device" else "nowhere")
    with pytest.raises(UsageError, match=f"{helpers.NATIVE} is no file, and one belongs there"):
        plan_restore(filled, "run", cache, here=HERE)


def test_gpu_differences_are_fatal_only_for_gpu_kernels(store: Store, cache: Path, tmp_path: Path) -> None:
    helpers.make_cache(tmp_path / "gpu", triton=True)
    snapshot(store, cache, name="cpu", fingerprint=HERE)
    snapshot(store, tmp_path / "gpu", name="gpu", fingerprint=HERE)
    here = helpers.fingerprint(gpu_sm_count="132")
    assert not plan_restore(store, "cpu", tmp_path / "new", here=here).comparison.fatal
    assert [one.name for one in plan_restore(store, "gpu", tmp_path / "new", here=here).comparison.fatal] == [
        "gpu_sm_count"
    ]


def test_the_best_match_fits_has_the_id_and_is_the_newest(store: Store, cache: Path) -> None:
    def take(name: str, compile_id: str, **changes: str) -> str:
        return snapshot(store, cache, name=name, fingerprint=helpers.fingerprint(**changes), compile_id=compile_id).id

    take("a", "two layers")
    newest = take("b", "two layers", threads="64")
    take("c", "two layers", cpu_isa="avx512")
    take("d", "three layers")
    match = best_match(store, HERE, "two layers")
    assert match is not None
    assert match.id == newest
    assert [one.name for one in match.comparison.degrading] == ["threads"]
    assert best_match(store, HERE, "four layers") is None
    assert best_match(store, helpers.fingerprint(python="cpython 3.14"), None) is None


def test_a_damaged_manifest_does_not_match_and_is_told(
    filled: Store, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = filled.resolve("run")
    filled.manifest_path(id_).write_bytes(b"rubbish")
    assert best_match(filled, HERE, "two layers") is None
    assert id_ in caplog.text


def test_a_full_disk_leaves_the_old_cache(filled: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / helpers.NATIVE).unlink()
    before = helpers.tree(cache)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    plan = plan_restore(filled, "run", cache, here=HERE)
    monkeypatch.setattr("cache_tools.restore.os.fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        execute(plan)
    assert helpers.tree(cache) == before


def test_what_another_process_made_meanwhile_is_kept(filled: Store, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    plan = plan_restore(filled, "run", target, here=HERE)
    helpers.write(target, helpers.NATIVE, b"built by another process")
    done = execute(plan)
    assert (done.added, done.kept) == (4, 1)
    assert (target / helpers.NATIVE).read_bytes() == b"built by another process"


@pytest.mark.parametrize("mode", ["merge", "replace"])
def test_of_two_restores_at_once_the_second_completes_the_first(
    filled: Store, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    target = tmp_path / "new"
    wanted = kept(cache)
    second = plan_restore(filled, "run", target, mode=mode, here=HERE)
    rename = fsops.rename

    def late(source: str | Path, destination: str | Path) -> None:
        """The first one, whose directory lost a file since, comes just before the second one's last step."""
        if Path(destination) == target:
            monkeypatch.setattr(fsops, "rename", rename)
            execute(plan_restore(filled, "run", target, here=HERE))
            (target / helpers.NATIVE).unlink()
        rename(source, destination)

    monkeypatch.setattr(fsops, "rename", late)
    done = execute(second)
    assert (done.added, done.present, done.kept) == (1, 4, 0)
    assert helpers.tree(target) == wanted
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp")]


def test_what_was_to_be_absent_and_appears_is_refused(filled: Store, tmp_path: Path) -> None:
    plan = plan_restore(filled, "run", tmp_path / "new", mode="absent", here=HERE)
    helpers.write(tmp_path, "new/other", b"mine")
    with pytest.raises(UsageError, match="appeared meanwhile"):
        execute(plan)
    assert helpers.tree(tmp_path / "new") == {"other": b"mine"}


def test_a_manifest_that_lies_about_a_size_is_refused(filled: Store, tmp_path: Path) -> None:
    honest = filled.read_manifest(filled.resolve("run"))
    lie = honest.entries[0]._replace(size=honest.entries[0].size + 1)
    id_, _ = filled.add_manifest(replace(honest, entries=(lie, *honest.entries[1:])))
    record_own(id_)
    with pytest.raises(CorruptError, match=id_):
        execute(plan_restore(filled, id_, tmp_path / "new", here=HERE))
    assert not (tmp_path / "new").exists()


def test_a_large_triton_group_points_into_the_new_place_too(store: Store, tmp_path: Path) -> None:
    cache, target = tmp_path / "gpu", tmp_path / "moved"
    folder = f"{cache}/triton/0/HASH"
    children = {f"kernel{number}": f"{folder}/{'k' * 200}{number}" for number in range(25_000)}
    helpers.write(cache, "triton/0/HASH/__grp__kernel.json", json.dumps({"child_paths": children}).encode())
    snapshot(store, cache, name="gpu", fingerprint=HERE)
    execute(plan_restore(store, "gpu", target, here=HERE))
    group = json.loads((target / "triton/0/HASH/__grp__kernel.json").read_text())
    assert all(path.startswith(f"{target}/triton/0/HASH/") for path in group["child_paths"].values())
