"""Every bit of a store is checked, and nothing half made is visible."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
import zstandard

from cache_tools import blobs, trust
from cache_tools.errors import CorruptError
from cache_tools.keyring import write_new_key
from cache_tools.packs import PackWriter
from cache_tools.pins import pin
from cache_tools.signing import load_private_key
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, create_store, open_store
from cache_tools.verify import list_snapshots, verify_store
from envguard.errors import UsageError

from . import helpers


@pytest.fixture
def filled(store: Store, tmp_path: Path) -> Store:
    cache = tmp_path / "cache"
    helpers.make_cache(cache, triton=True)
    snapshot(store, cache, name="first", fingerprint=helpers.fingerprint())
    helpers.write(cache, "ab/cnew.main.cpp", b"// more")
    snapshot(store, cache, name="second", fingerprint=helpers.fingerprint())
    return store


def only_in_the_second(store: Store) -> set[str]:
    first, second = (
        {e.sha256 for e in store.read_manifest(store.resolve(name)).entries} for name in ("first", "second")
    )
    return second - first


def checked_files(store: Store) -> list[Path]:
    return [
        path
        for path in sorted(store.root.rglob("*"))
        if path.is_file() and not {"lock", "stamp"} & set(path.name.split("."))
    ]


def test_a_healthy_store(filled: Store) -> None:
    found = verify_store(filled.root)
    assert (found.snapshots, found.blobs, found.problems) == (2, 10, ())
    assert filled.root.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in checked_files(filled)} == {0o600}


def test_what_is_added_to_a_store_that_was_opened_to_others_can_be_read_by_them(filled: Store, tmp_path: Path) -> None:
    for folder in ("blobs", "snapshots", "refs"):
        (filled.root / folder).chmod(0o770)
    before = set(checked_files(filled))
    helpers.write(tmp_path / "cache", "ab/cthird.main.cpp", b"// third")
    umask = os.umask(0o077)
    try:
        done = snapshot(filled, tmp_path / "cache", name="third", fingerprint=helpers.fingerprint())
        pin(filled, "third")
        key = tmp_path / "key"
        write_new_key(key)
        trust.sign(filled, done.id, load_private_key(key))
    finally:
        os.umask(umask)
    added = [path for path in checked_files(filled) if path not in before and path.parent.name != "pins"]
    assert sorted(path.parent.name for path in added) == ["blobs", "refs", "snapshots", "snapshots"]
    assert {path.stat().st_mode & 0o777 for path in added} == {0o640}
    assert {path.stat().st_mode & 0o777 for path in before} == {0o600}
    assert (filled.root / "pins").stat().st_mode & 0o777 == 0o770


def test_every_flipped_bit_of_every_file_is_noticed_and_the_file_named(filled: Store) -> None:
    for path in checked_files(filled):
        original = path.read_bytes()
        step = max(1, len(original) * 8 // 50)
        for bit in range(0, len(original) * 8, step):
            changed = bytearray(original)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            named = [problem.path for problem in verify_store(filled.root).problems]
            assert path.relative_to(filled.root).as_posix() in named, f"bit {bit}"
        path.write_bytes(original)
    assert verify_store(filled.root).problems == ()


def test_every_cut_is_noticed(filled: Store) -> None:
    for path in checked_files(filled):
        original = path.read_bytes()
        for length in {0, 1, len(original) // 2, len(original) - 1}:
            path.write_bytes(original[:length])
            named = [problem.path for problem in verify_store(filled.root).problems]
            assert path.relative_to(filled.root).as_posix() in named, f"cut to {length}"
        path.write_bytes(original + b"\0")
        assert verify_store(filled.root).problems, "a longer file"
        path.write_bytes(original)


def pack_of(folder: Path, *contents: bytes) -> Path:
    writer = PackWriter(folder)
    for content in contents:
        writer.add(hashlib.sha256(content).digest(), blobs.compressor().compress(content), len(content))
    (pack,) = writer.seal()
    return pack


def test_any_zstd_reads_a_pack(tmp_path: Path) -> None:
    pack = pack_of(tmp_path, b"plain", b" and simple")
    reader = zstandard.ZstdDecompressor().stream_reader(pack.read_bytes(), read_across_frames=True)
    assert reader.read() == b"plain and simple"


def test_a_bomb_is_not_unpacked(store: Store) -> None:
    bomb = bytes(100 << 20)
    digest = hashlib.sha256(bomb)
    pack_of(store.root / "blobs", bomb)
    with pytest.raises(CorruptError, match=r"104857600 bytes .* where at most 10 belong"):
        store.read_blob(digest.hexdigest(), limit=10)


@pytest.mark.parametrize("limit", [10, 5 << 20])
def test_a_bomb_that_hides_its_size_is_not_unpacked(store: Store, limit: int) -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100 << 20))
    writer = PackWriter(store.root / "blobs")
    writer.add(b"\xab" * 32, frame, limit)
    writer.seal()
    with pytest.raises(CorruptError):
        store.read_blob("ab" * 32, limit=limit)


def test_missing_files_are_noticed(filled: Store) -> None:
    (extra,) = only_in_the_second(filled)
    filled.blob_path(extra).unlink()
    filled.manifest_path(filled.resolve("first")).unlink()
    problems = {problem.path: problem.reason for problem in verify_store(filled.root).problems}
    assert problems.keys() == {f"blobs/{extra}", "refs/first"}
    assert problems[f"blobs/{extra}"].startswith("ab/cnew.main.cpp is missing")
    assert {one.name: bool(one.problem) for one in list_snapshots(filled)} == {"first": True, "second": False}


def test_only_the_named_snapshot_is_checked(filled: Store) -> None:
    (extra,) = only_in_the_second(filled)
    helpers.flip(filled.blob_path(extra), 77)
    assert verify_store(filled.root, ["first"]).problems == ()
    assert len(verify_store(filled.root, ["second"]).problems) == 1


def test_foreign_files_are_reported_and_leftovers_are_not(filled: Store) -> None:
    helpers.write(filled.root, "blobs/ab/notes.txt", b"hello")
    helpers.write(filled.root, "refs/.tmp-abc", b"half")
    assert [problem.path for problem in verify_store(filled.root).problems] == ["blobs/ab/notes.txt"]


@pytest.mark.parametrize("damage", ["flip", "cut", "rubbish", "gone"])
def test_a_damaged_pack_is_replaced_by_the_next_snapshot(filled: Store, tmp_path: Path, damage: str) -> None:
    victim = max(helpers.packs(filled.root), key=lambda pack: pack.stat().st_size)
    if damage == "flip":
        helpers.flip(victim, 300)
    elif damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-5] if damage == "cut" else b"rubbish")
    assert verify_store(filled.root).problems
    taken = snapshot(open_store(filled.root), tmp_path / "cache", name="third", fingerprint=helpers.fingerprint())
    assert taken.blobs_written == 9
    assert verify_store(filled.root).problems == ()
    assert {one.problem for one in list_snapshots(open_store(filled.root))} == {None}


def test_a_damaged_pack_that_cannot_be_replaced_stays_and_is_named(filled: Store, tmp_path: Path) -> None:
    victim = max(helpers.packs(filled.root), key=lambda pack: pack.stat().st_size)
    helpers.flip(victim, 300)
    other = tmp_path / "other"
    helpers.write(other, "ab/cother.main.cpp", b"// another program")
    snapshot(filled, other, name="other", fingerprint=helpers.fingerprint())
    assert [problem.path for problem in verify_store(filled.root).problems] == [f"blobs/{victim.name}"]


def test_a_folder_in_place_of_a_pack_stops_no_snapshot(filled: Store, tmp_path: Path) -> None:
    folder = filled.root / "blobs" / f"{'0' * 64}.pack"
    folder.mkdir()
    snapshot(open_store(filled.root), tmp_path / "cache", name="third", fingerprint=helpers.fingerprint())
    assert [problem.path for problem in verify_store(filled.root).problems] == [f"blobs/{folder.name}"]


def test_a_damaged_pack_that_became_good_meanwhile_stays(filled: Store) -> None:
    """Another writer puts the same pack there, for a manifest that is to come."""
    pack = max(helpers.packs(filled.root), key=lambda one: one.stat().st_size)
    whole = pack.read_bytes()
    pack.write_bytes(b"rubbish")
    for id_ in filled.ids():
        filled.manifest_path(id_).unlink()
    with open_store(filled.root).adding() as writer:
        writer.add(b"other", hashlib.sha256(b"other").digest())
        pack.write_bytes(whole)
        writer.commit()
    assert pack.exists()


def test_names_ids_and_beginnings(filled: Store) -> None:
    id_ = filled.resolve("first")
    assert filled.resolve(id_) == filled.resolve(id_[:12]) == id_
    with pytest.raises(UsageError, match=r"no snapshot 'frist'; names: first, second"):
        filled.resolve("frist")
    with pytest.raises(UsageError):
        filled.resolve("../refs/first")


def test_an_id_is_never_a_name(filled: Store) -> None:
    first, second = filled.resolve("first"), filled.resolve("second")
    helpers.write(filled.root, f"refs/{first}", f"{second}\n".encode())
    assert filled.resolve(first) == first
    with pytest.raises(CorruptError, match="named like a snapshot id"):
        filled.read_ref(first)
    assert [problem.path for problem in verify_store(filled.root).problems] == [f"refs/{first}"]
    assert [one.name for one in list_snapshots(filled) if one.problem] == [first]
    helpers.write(filled.root, f"refs/{'ab' * 32}", f"{second}\n".encode())
    with pytest.raises(UsageError, match="no snapshot"):
        filled.resolve("ab" * 32)


def test_a_name_that_begins_an_id_is_refused(filled: Store, tmp_path: Path) -> None:
    id_ = filled.resolve("first")
    for name in (id_[:4], id_[:63]):
        with pytest.raises(UsageError, match=f"begins the id of snapshot {id_}"):
            snapshot(filled, tmp_path / "cache", name=name, fingerprint=helpers.fingerprint())
        assert filled.resolve(name) == id_
    snapshot(filled, tmp_path / "cache", name=id_[:3], fingerprint=helpers.fingerprint())


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../x", "a b", "-x", "x" * 129, "ab" * 32])
def test_bad_names_are_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a snapshot"):
        store.set_ref(name, "ab" * 32)


@pytest.mark.parametrize("text", ['{"format":%d}', ' {"format": %d}\n'])
@pytest.mark.parametrize("other", [1, 3])
def test_a_store_of_another_format_names_the_ways_out(
    store: Store, other: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / "config.json").write_text(text % other)
    ways = rf"move it away \(mv -- {store.root} {store.root}\.old\).*--store, compile\.store.*DFLASH_CACHE_STORE"
    monkeypatch.chdir(store.root)
    for root in (store.root, Path()):
        told = rf"{root / 'config.json'} tells of format {other}, this version reads and writes 2: .*{ways}"
        with pytest.raises(CorruptError, match=told):
            open_store(root)


@pytest.mark.parametrize("damaged", [b"", b'{"format":2', b'{"format":2}\n', b'{"format":2.5}', b"x" * 100])
def test_a_damaged_configuration_is_refused(store: Store, damaged: bytes) -> None:
    (store.root / "config.json").write_bytes(damaged)
    with pytest.raises(CorruptError, match=r'config\.json is damaged, it must be \{"format":2\}: copy the store again'):
        open_store(store.root)


def test_a_half_copied_store_is_recognised(filled: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_bytes((filled.root / "config.json").read_bytes())
    with pytest.raises(CorruptError, match="incomplete"):
        open_store(copy)


@pytest.mark.parametrize("part", ["blobs", "snapshots"])
def test_a_copy_without_its_configuration_is_recognised(filled: Store, tmp_path: Path, part: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(filled.root / part, copy / part)
    for opener in (open_store, create_store):
        with pytest.raises(CorruptError, match=r"config\.json is missing .*was the copy finished"):
            opener(copy)
    (problem,) = verify_store(copy).problems
    assert problem.path == "config.json"
    assert "was the copy finished" in problem.reason


def test_a_store_whose_making_was_stopped_is_made(tmp_path: Path) -> None:
    (tmp_path / "new" / "blobs").mkdir(parents=True)
    with pytest.raises(UsageError, match="not a cache store"):
        open_store(tmp_path / "new")
    assert create_store(tmp_path / "new").ids() == ()


@pytest.mark.parametrize("folder", ["leases", "pins", "stamps"])
def test_a_file_in_place_of_a_folder_is_named(filled: Store, folder: str) -> None:
    if (filled.root / folder).exists():
        shutil.rmtree(filled.root / folder)
    (filled.root / folder).write_bytes(b"")
    for opener in (open_store, create_store):
        with pytest.raises(CorruptError, match=f"{folder} is not a directory: remove it"):
            opener(filled.root)
    assert [(one.path, one.reason) for one in verify_store(filled.root).problems] == [
        (folder, "is not a directory: remove it")
    ]


def test_other_directories_are_not_made_into_stores(tmp_path: Path) -> None:
    helpers.write(tmp_path, "home/notes.txt", b"mine")
    with pytest.raises(UsageError, match="not a cache store"):
        create_store(tmp_path / "home")
    with pytest.raises(UsageError, match="not a cache store"):
        open_store(tmp_path / "nothing")
