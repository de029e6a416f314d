"""What a comparison of the installed files told is remembered, and every change of any of them is still seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard import check_project, statcache
from envguard.probes import contents
from envguard.probes.tree import digest, walk
from envguard.report import Report
from tests.envguard.scratch import TRACE, Scratch


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this test are old enough to be remembered."""
    monkeypatch.setattr(statcache, "TICK_NS", -10_000_000_000)


@pytest.fixture
def not_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, comparing the files is a crash."""

    def crash(*arguments: object, **named: object) -> None:
        raise AssertionError("the files were compared anew")

    return lambda: monkeypatch.setattr(contents, "read_contents", crash)


def judge(scratch: Scratch) -> Report:
    return check_project(scratch.root, "cpu", scratch.python, tier="standard")


def found(report: Report) -> list[tuple[str, str, str]]:
    return [(each.id, each.subject, each.message) for each in report.findings]


@pytest.mark.usefixtures("at_once")
def test_the_second_judgement_compares_nothing_and_says_the_same(
    scratch: Scratch, not_read: Callable[[], None]
) -> None:
    (scratch.site_packages / "stray.py").write_text("")  # a finding that is no change of an owned file
    first = judge(scratch)
    assert [each.id for each in first.findings] == ["INT005"]
    not_read()
    second = judge(scratch)
    assert found(second) == found(first)
    assert (second.env_id, second.skipped, second.passed) == (first.env_id, first.skipped, first.passed)


def swap(place: Path) -> None:
    """Other content, of the same size and with the same time of modification."""
    before = place.stat()
    place.write_bytes(place.read_bytes().swapcase())
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


def exchange(place: Path) -> None:
    """Another file under the name, with the same size and time of modification."""
    before = place.stat()
    other = place.with_name("other")
    other.write_bytes(place.read_bytes().swapcase())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(place)


def append(place: Path) -> None:
    place.write_text(place.read_text() + "# more\n")


def link_away(place: Path) -> None:
    place.rename(place.with_name("moved"))
    place.symlink_to("nowhere")


RECORD = "gamma-1.0.dist-info/RECORD"

CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "swapped": (TRACE, swap, "INT002"),
    "exchanged": (TRACE, exchange, "INT002"),
    "longer": ("gamma/__init__.py", append, "INT001"),
    "deleted": ("gamma/__init__.py", Path.unlink, "INT001"),
    "link": ("gamma/__init__.py", link_away, "INT001"),
    "new file": ("stray.py", lambda place: place.write_text(""), "INT005"),
    "new directory": ("stray", Path.mkdir, "INT005"),
    "script": ("../../../bin/say", append, "INT001"),
    "no script": ("../../../bin/say", Path.unlink, "PKG010"),
    "record": (
        "gamma-1.0.dist-info/RECORD",
        lambda place: place.write_text("gamma-1.0.dist-info/RECORD,,\n"),
        "INT005",
    ),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_a_remembered_judgement_is_found(
    scratch: Scratch, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(judge(scratch)) == []
    assert found(judge(scratch)) == []
    path, edit, expected = CHANGES[change]
    edit(scratch.site_packages / path)
    told = found(judge(scratch))
    assert expected in [check for check, _, _ in told]
    assert found(judge(scratch)) == told
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert found(judge(scratch)) == told


@pytest.mark.usefixtures("at_once")
def test_other_watched_distributions_are_compared_anew(scratch: Scratch) -> None:
    policy = scratch.root / "envguard.toml"
    policy.write_text(policy.read_text().replace('watched = ["torch", "alpha"]', 'watched = ["alpha"]'))
    swap(scratch.site_packages / TRACE)
    assert found(judge(scratch)) == []  # the file has the right size, and nobody watches it
    policy.write_text(policy.read_text().replace('watched = ["alpha"]', 'watched = ["torch"]'))
    assert [check for check, _, _ in found(judge(scratch))] == ["INT002"]


def test_files_that_may_still_change_are_not_remembered(scratch: Scratch, tmp_path: Path) -> None:
    (scratch.site_packages / "alpha" / "__init__.py").touch()
    judge(scratch)
    assert not list((tmp_path / "user-cache").glob("envguard/compared-*"))


def test_a_digest_is_that_of_the_walk_and_changes_with_every_name_and_status(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "package" / "deep").mkdir(parents=True)
    (root / "package" / "__pycache__").mkdir()
    (root / "package" / "new\nline.py").write_text("a")
    (root / os.fsdecode(b"caf\xe9")).write_text("b")
    (root / "nowhere").symlink_to("missing")
    (root / "round").symlink_to("round")
    (root / "linked").symlink_to(tmp_path)

    seen = [digest(root)]
    assert walk(root).digest() == walk(root, with_bytecode=True).digest() == seen[0]
    changes: list[Callable[[], object]] = [
        lambda: (root / "package" / "empty").mkdir(),
        lambda: (root / "package" / "empty").rename(root / "package" / "void"),
        lambda: (root / "package" / "void").rmdir(),
        lambda: os.utime(root / "package" / "new\nline.py", ns=(1, 1)),
        lambda: (root / "package" / "new\nline.py").rename(root / "package" / "newline.py"),
        lambda: (root / "nowhere").unlink(),
        lambda: (root / "package" / "newline.py").chmod(0o600),
        lambda: (root / "package" / "__pycache__").rename(root / "package" / "bytecode"),
    ]
    for change in changes:
        change()
        assert digest(root) == walk(root).digest()
        seen.append(digest(root))
    assert seen[3] == seen[0]  # a directory that came and went
    assert len(set(seen)) == len(seen) - 1
    (root / "package" / "bytecode").rename(root / "package" / "__pycache__")
    (root / "package" / "__pycache__" / "a.pyc").write_text("")
    assert digest(root) == seen[-2]  # Python writes bytecode as it likes
