"""What is remembered between two runs: never trusted when it could be wrong, never needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envguard import check_project, statcache
from envguard.lockcache import load_expected
from envguard.probes import hashing
from envguard.probes.hashing import Wanted, digest_files
from envguard.probes.interpreter import find_interpreter
from envguard.statcache import StatCache
from tests.envguard.scratch import Scratch


@pytest.fixture
def cache(tmp_path: Path) -> StatCache:
    return StatCache(directory=tmp_path / "cache")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this test are old enough to be remembered."""
    monkeypatch.setattr(statcache, "TICK_NS", -10_000_000_000)


def place(cache: StatCache, name: str = "a.json") -> Path:
    assert cache.directory is not None
    return cache.directory / name


def test_it_remembers_and_is_private(cache: StatCache) -> None:
    assert cache.read("a.json") is None
    cache.write("a.json", {"b": [1, "caf\udce9"]})
    assert cache.read("a.json") == {"b": [1, "caf\udce9"]}
    assert place(cache).stat().st_mode & 0o777 == 0o600
    assert place(cache).parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in place(cache).parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("position", range(0, 90, 7))
def test_any_flipped_byte_makes_it_worthless(cache: StatCache, position: int) -> None:
    cache.write("a.json", {"key": "value", "number": 1})
    data = bytearray(place(cache).read_bytes())
    data[position % len(data)] ^= 1
    place(cache).write_bytes(data)
    assert cache.read("a.json") is None


def test_cut_foreign_writable_linked_or_renamed_is_not_trusted(
    cache: StatCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("a.json", [1])
    good = place(cache).read_bytes()
    place(cache).write_bytes(good[:-1])
    assert cache.read("a.json") is None
    place(cache).write_bytes(good)
    place(cache).chmod(0o620)
    assert cache.read("a.json") is None
    place(cache).chmod(0o600)
    assert cache.read("a.json") == [1]
    place(cache, "b.json").write_bytes(good)
    assert cache.read("b.json") is None
    place(cache, "c.json").symlink_to(place(cache))
    assert cache.read("c.json") is None
    os.mkfifo(place(cache, "d.json"))
    assert cache.read("d.json") is None
    place(cache, "e.json").mkdir()
    assert cache.read("e.json") is None
    cache.write("e.json", [1])
    assert cache.read("e.json") is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert cache.read("a.json") is None


def test_without_a_writable_directory_everything_works(
    clean: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))  # uv itself cannot do without
    for home in (str(tmp_path / "file" / "below"), "/proc/nowhere", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert check_project(clean.root, "cpu", clean.python, tier="standard").findings == ()
    StatCache(directory=None).write("a.json", 1)
    assert StatCache(directory=None).read("a.json") is None


def test_what_nobody_used_for_long_goes_and_files_of_others_stay(cache: StatCache) -> None:
    for name in ("old.json", "new.json"):
        cache.write(name, [1])
    for name in ("thesis.txt", "statcache.py", ".tmp-thesis"):
        place(cache, name).write_text("months of work")
    place(cache, ".tmp-old.json-1-1").write_text("")
    for path in place(cache).parent.iterdir():
        if path.name != "new.json":
            os.utime(path, (0, 0))
    cache.write("new.json", [2])
    left = {path.name for path in place(cache).parent.iterdir()}
    assert left == {"new.json", "thesis.txt", "statcache.py", ".tmp-thesis"}


def test_files_of_two_file_systems_are_told_apart(tmp_path: Path) -> None:
    """Two of the same size, made in the same tick of two new tmpfs, share every number but the device's."""
    path = tmp_path / "a"
    path.write_text("")
    status = list(path.stat())
    other = [*status[:2], status[2] + 1, *status[3:]]
    assert statcache.signature(os.stat_result(status)) != statcache.signature(os.stat_result(other))


def wanted(path: Path) -> list[Wanted]:
    return [Wanted(path=path.name, status=path.stat(), algorithm="sha256")]


@pytest.mark.usefixtures("at_once")
def test_a_file_is_hashed_once(cache: StatCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("")
    first = digest_files(tmp_path, wanted(path), cache)
    assert first == {"a.py": "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"}
    with monkeypatch.context() as patched:
        patched.setattr(hashing, "hash_file", lambda *arguments: 1 / 0)
        assert digest_files(tmp_path, wanted(path), cache) == first
        path.write_text("x")
        with pytest.raises(ZeroDivisionError):
            digest_files(tmp_path, wanted(path), cache)


@pytest.mark.usefixtures("at_once")
def test_an_edit_that_keeps_size_and_time_is_seen(cache: StatCache, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("a")
    before = path.stat()
    first = digest_files(tmp_path, wanted(path), cache)
    path.write_text("b")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_files(tmp_path, wanted(path), cache) != first


def test_a_file_written_just_now_is_not_remembered(cache: StatCache, tmp_path: Path) -> None:
    """Within one tick of the clock it could be written again and look the same."""
    path = tmp_path / "a.py"
    path.write_text("a")
    digest_files(tmp_path, wanted(path), cache)
    assert not place(cache).parent.exists()


def test_many_files_in_parallel_with_progress(cache: StatCache, tmp_path: Path) -> None:
    files = []
    for number in range(300):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes([number % 251]) * (3_000_000 if number < 3 else number))
        files += wanted(path)
    (tmp_path / "299.bin").unlink()
    told: list[tuple[int, int]] = []
    found = digest_files(tmp_path, files, cache, lambda done, total: told.append((done, total)))
    assert len(found) == 300
    assert found["299.bin"] is None
    assert len({digest for digest in found.values() if digest}) == 299
    total = sum(each.status.st_size for each in files)
    assert told[-1] == (total - 299, total)
    assert told == sorted(told)


@pytest.mark.usefixtures("at_once")
def test_a_lock_is_parsed_once_and_again_when_anything_differs(
    scratch: Scratch, cache: StatCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = find_interpreter(scratch.python).marker_environment()
    first = load_expected(scratch.root / "uv.lock", environment, cache)
    with monkeypatch.context() as patched:
        patched.setattr("envguard.lockcache.expect", lambda lock, environment: 1 / 0)
        assert load_expected(scratch.root / "uv.lock", environment, cache) == first
        with pytest.raises(ZeroDivisionError):
            load_expected(scratch.root / "uv.lock", {**environment, "sys_platform": "plan9"}, cache)
    text = (scratch.root / "uv.lock").read_text()
    (scratch.root / "uv.lock").write_text(
        text.replace('name = "gamma"\nversion = "1.0"', 'name = "gamma"\nversion = "1.5"')
    )
    assert load_expected(scratch.root / "uv.lock", environment, cache).required["gamma"] == "1.5"


@pytest.mark.usefixtures("at_once")
def test_deep_reads_every_file_each_time(clean: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = hashing.hash_file

    def count(path: str, *rest: object) -> object:
        read.append(path)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hashing, "hash_file", count)
    counts = []
    for _ in range(2):
        read.clear()
        assert check_project(clean.root, "cpu", clean.python, tier="deep").findings == ()
        counts.append(len(read))
    assert counts[0] == counts[1] > 5
