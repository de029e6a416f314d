"""Flushing on the way: a failed write is told, whichever flush met it."""

from __future__ import annotations

import ctypes
import errno
import time
from pathlib import Path

import pytest

from envguard import fsops


class FailingLibrary:
    """A C library whose ``syncfs`` fails."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls = 0

    def syncfs(self, _fd: int) -> int:
        self.calls += 1
        ctypes.set_errno(self.code)
        return -1


def write_much(root: Path, library: FailingLibrary, error: Exception | None = None) -> None:
    with fsops.Writeback(root) as writeback:
        writeback.note(fsops.WRITEBACK_BYTES)
        while not library.calls:
            time.sleep(0.001)
        if error:
            raise error


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FailingLibrary:
    library = FailingLibrary(errno.EIO)
    monkeypatch.setattr(fsops, "_libc", lambda: library)
    return library


def test_a_flush_that_fails_is_told(tmp_path: Path, library: FailingLibrary) -> None:
    with pytest.raises(OSError, match="Input/output error") as caught:
        write_much(tmp_path, library)
    assert caught.value.errno == errno.EIO


def test_a_system_that_cannot_flush_is_no_error(tmp_path: Path, library: FailingLibrary) -> None:
    library.code = errno.ENOSYS
    write_much(tmp_path, library)


def test_the_first_error_counts(tmp_path: Path, library: FailingLibrary) -> None:
    with pytest.raises(ValueError, match="first"):
        write_much(tmp_path, library, ValueError("first"))


def test_new_directories_and_their_parents_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(fsops, "fsync_dir", synced.append)
    fsops.make_dirs(tmp_path / "a" / "b" / "c", mode=0o700)
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    assert (tmp_path / "a" / "b" / "c").stat().st_mode & 0o777 == 0o700
    fsops.make_dirs(tmp_path / "a" / "b" / "c", mode=0o700)
    assert len(synced) == 3


def test_a_file_in_the_way_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(NotADirectoryError) as caught:
        fsops.make_dirs(tmp_path / "a" / "b", mode=0o700)
    assert caught.value.filename == str(tmp_path / "a")
