"""What is remembered saves work and is never believed wrongly."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cache_tools import filereader, stamps
from cache_tools.errors import CorruptError
from cache_tools.restore import execute, plan_restore
from cache_tools.snapshot import SnapshotResult, snapshot
from cache_tools.store import Store, open_store
from cache_tools.verify import verify_store

from . import helpers

HERE = helpers.fingerprint()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache", triton=True)
    time.sleep(2 * stamps.TICK_NS / 1e9)
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[str]:
    """Files of the cache that are opened for reading."""
    paths: list[str] = []
    real = filereader._open

    def noted(path: str) -> int:
        paths.append(os.path.relpath(path, cache))
        return real(path)

    monkeypatch.setattr(filereader, "_open", noted)
    return paths


def take(store: Store, cache: Path) -> SnapshotResult:
    return snapshot(open_store(store.root), cache, name="run", fingerprint=HERE)


def content(store: Store, path: str) -> bytes:
    entries = {one.path: one for one in store.read_manifest(open_store(store.root).resolve("run")).entries}
    return open_store(store.root).read_blob(entries[path].sha256, limit=entries[path].size)


def test_unchanged_files_are_not_opened_and_changed_ones_are(store: Store, cache: Path, opened: list[str]) -> None:
    first = take(store, cache)
    assert len(opened) == first.entries
    opened.clear()
    assert take(store, cache).id == first.id
    assert opened == []
    helpers.write(cache, helpers.SOURCE_CPP, b"// another kernel of some length")
    time.sleep(2 * stamps.TICK_NS / 1e9)
    take(store, cache)
    assert opened == [helpers.SOURCE_CPP]
    assert content(store, helpers.SOURCE_CPP) == b"// another kernel of some length"


def test_the_same_size_and_a_time_set_back_do_not_deceive(store: Store, cache: Path) -> None:
    take(store, cache)
    file = cache / helpers.SOURCE_CPP
    status, old = file.stat(), file.read_bytes()
    file.write_bytes(bytes(reversed(old)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    take(store, cache)
    assert content(store, helpers.SOURCE_CPP) == bytes(reversed(old))


@pytest.mark.parametrize("damage", ["flip", "cut", "rubbish", "gone", "foreign", "writable"])
def test_a_stamp_that_is_not_whole_and_ours_is_ignored(
    store: Store, cache: Path, opened: list[str], damage: str
) -> None:
    first = take(store, cache)
    opened.clear()
    for stamp in (store.root / "stamps").iterdir():
        if damage == "flip":
            helpers.flip(stamp, 8 * 90 + 1)
        elif damage == "gone":
            stamp.unlink()
        elif damage == "writable":
            stamp.chmod(0o666)
        elif damage == "foreign":
            os.chown(stamp, 12345, -1)  # the tests run as root, as those that mount do
        else:
            stamp.write_bytes(b"rubbish" if damage == "rubbish" else stamp.read_bytes()[:-9])
    assert take(store, cache).id == first.id
    assert len(opened) == first.entries
    assert verify_store(store.root).problems == ()


def test_a_remembered_file_whose_blob_is_gone_is_read_again(store: Store, cache: Path) -> None:
    first = take(store, cache)
    for pack in helpers.packs(store.root):
        pack.unlink()
    assert take(store, cache).blobs_written == first.entries
    assert verify_store(store.root).problems == ()


def test_a_file_that_was_written_just_now_is_not_remembered(store: Store, cache: Path, opened: list[str]) -> None:
    assert not stamps.is_settled((1, 1, 10**9, 10**9), 10**9 + stamps.TICK_NS)
    assert stamps.is_settled((1, 1, 10**9, 10**9), 10**9 + stamps.TICK_NS + 1)
    assert not stamps.is_settled((1, 1, 0, 10**9), 10**9)


@pytest.mark.parametrize("finder", ["verify", "restore"])
def test_a_pack_that_rots_is_replaced_once_that_was_noticed(
    store: Store, cache: Path, tmp_path: Path, finder: str
) -> None:
    """Bits that rot on a disk change no time of the file, so that the stamp still stands."""
    take(store, cache)
    (pack,) = helpers.packs(store.root)
    helpers.flip(pack, 300)
    stamps.write(stamps.pack_stamp(store.root), {pack.name: list(stamps.status_of(pack.stat()))})
    if finder == "verify":
        assert verify_store(store.root).problems
    else:
        with pytest.raises(CorruptError, match=pack.name):
            execute(plan_restore(open_store(store.root), "run", tmp_path / "new", here=HERE))
    take(store, cache)
    assert verify_store(store.root).problems == ()
