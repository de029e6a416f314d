"""Bad files of a cache that nobody snapshotted."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cache_tools.live import check_live, quarantine
from cache_tools.notes import notes
from cache_tools.scan import scan

from . import helpers


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache", triton=True)
    return tmp_path / "cache"


def found(cache: Path, *, deep: bool = False) -> dict[str, str]:
    return {file.path: file.reason for file in check_live(cache, deep=deep)}


def test_a_healthy_cache(cache: Path) -> None:
    assert found(cache, deep=True) == {}
    assert check_live(cache / "not yet there") == ()


def test_a_cache_that_a_link_leads_to_is_judged_and_repaired(cache: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache)
    assert check_live(link, deep=True) == ()
    cache.chmod(0o777)
    (cache / helpers.NATIVE).write_bytes(b"")
    bad = check_live(link, deep=True)
    assert [file.path for file in bad] == [".", helpers.NATIVE]
    repaired = quarantine(link, bad)
    assert (len(repaired.moved), len(repaired.closed), repaired.busy) == (1, 1, ())
    assert check_live(link, deep=True) == ()


def test_every_cut_of_a_shared_object_is_seen_without_reading_it(cache: Path) -> None:
    whole = helpers.elf()
    for length in range(len(whole)):
        (cache / helpers.NATIVE).write_bytes(whole[:length])
        assert list(found(cache)) == [helpers.NATIVE], f"cut to {length}"
    (cache / helpers.NATIVE).write_bytes(whole)
    assert found(cache) == {}


def test_empty_entries_are_seen_by_the_quick_check(cache: Path) -> None:
    for path in ("fxgraph/ab/fabkey/empty", "ca/cempty.py", "aotautograd/akey/empty"):
        helpers.write(cache, path, b"")
    assert found(cache).keys() == {"fxgraph/ab/fabkey/empty", "ca/cempty.py", "aotautograd/akey/empty"}


def test_the_deep_check_compares_names_with_content(cache: Path) -> None:
    graph = next(path for path in helpers.tree(cache) if path.startswith("fxgraph"))
    data = bytearray((cache / graph).read_bytes())
    data[7] ^= 1
    (cache / graph).write_bytes(data)
    helpers.write(cache, "aotautograd/akey/0000", b"a foreign pickle")
    helpers.write(cache, helpers.BEST_CONFIG, b'{"XBLOCK": 6')
    (cache / "ca" / "link.py").symlink_to("/etc/passwd")
    assert found(cache) == {}
    assert found(cache, deep=True) == {
        graph: "its content does not hash to its name",
        "aotautograd/akey/0000": "a foreign pickle: torch names entries by their checksum, and executes what lies here",
        helpers.BEST_CONFIG: "no valid JSON",
        "ca/link.py": "a link",
    }


def test_what_others_can_write_is_told(cache: Path) -> None:
    (cache / helpers.NATIVE).chmod(0o777)
    assert "everybody" in found(cache, deep=True)[helpers.NATIVE]


def test_folders_that_others_can_write_to_are_closed_and_stay(cache: Path) -> None:
    for folder in (cache, cache / "fxgraph"):
        folder.chmod(0o777)
    (cache / "locks").chmod(0o1777)  # sticky, as /tmp: nobody can replace another's file
    bad = check_live(cache, deep=True)
    assert [(file.path, file.folder) for file in bad] == [(".", True), ("fxgraph", True)]
    assert found(cache) == {}, "the quick check looks at content only"
    done = quarantine(cache, bad)
    assert ([file.path for file in done.closed], done.folder, done.busy) == ([".", "fxgraph"], None, ())
    assert found(cache, deep=True) == {}


def test_what_belongs_to_another_user_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # root's own files are trusted, so make them somebody's
        os.chown(cache / helpers.NATIVE, 4242, -1)
        os.chown(cache / "fxgraph", 4242, -1)
        expected = {helpers.NATIVE, "fxgraph"}
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        expected = {*(path for path in helpers.tree(cache) if not path.startswith(("locks", "ca/."))), *folders(cache)}
    bad = found(cache, deep=True)
    assert bad.keys() == expected
    assert all("user " in reason for reason in bad.values())
    if os.geteuid() == 0:
        done = quarantine(cache, check_live(cache, deep=True))
        assert [file.path for file in done.moved] == [helpers.NATIVE]
        assert [file.path for file in done.busy] == ["fxgraph"], "somebody else's folder is not ours to change"


def folders(cache: Path) -> set[str]:
    return {path.relative_to(cache).as_posix() for path in (cache, *cache.rglob("*")) if path.is_dir()}


def test_entries_that_are_there_twice_are_noted_and_not_bad(cache: Path) -> None:
    assert notes(cache, scan(cache)) == ()
    data = b"the same graph, compiled by another process"
    twin = helpers.write(cache, f"fxgraph/ab/fabkey/{helpers.b32(data)}", data)
    assert found(cache, deep=True) == {}
    (note,) = notes(cache, scan(cache))
    assert (note.id, "1 graphs have 1 entries too many" in note.message) == ("duplicates", True)
    assert twin in scan(cache).duplicates["fxgraph/ab/fabkey"]


def test_quarantine_moves_and_keeps_the_path(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / helpers.NATIVE).write_bytes(b"")
    monkeypatch.chdir(cache)
    done = quarantine(Path(), check_live(Path()))
    assert done.folder is not None
    assert done.folder.parent == cache.parent
    assert done.folder.name.startswith("cache.quarantine-")
    assert (done.folder / helpers.NATIVE).is_file()
    assert not (cache / helpers.NATIVE).exists()
    assert found(cache, deep=True) == {}


def test_what_is_being_linked_is_left_alone(cache: Path) -> None:
    (cache / helpers.NATIVE).write_bytes(b"")
    bad = check_live(cache)
    with (cache / "locks" / "ciqkernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert found(cache) == {}
        done = quarantine(cache, bad)
    assert (done.moved, [file.path for file in done.busy]) == ((), [helpers.NATIVE])
    assert (cache / helpers.NATIVE).exists()


def test_what_healed_meanwhile_is_left_alone(cache: Path) -> None:
    (cache / helpers.NATIVE).write_bytes(b"")
    bad = check_live(cache)
    (cache / helpers.NATIVE).write_bytes(helpers.elf())
    done = quarantine(cache, bad)
    assert (done.folder, done.moved, done.busy) == (None, (), ())
