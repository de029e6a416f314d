"""Leases count while their holder lives, wherever it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cache_tools import lease
from cache_tools.errors import StorageError
from cache_tools.store import Store

HOLD = (
    "import sys, time, pathlib; from cache_tools import lease\nwith lease.{}: print('held', flush=True); time.sleep(60)"
)


def hold(root: Path, what: str) -> subprocess.Popen[str]:
    code = HOLD.format(what.replace("ROOT", f"pathlib.Path({str(root)!r})"))
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_lease_ends_with_its_block(store: Store) -> None:
    with lease.using(store.root, "ab" * 32):
        (held,) = lease.alive(store.root)
        assert (held.subject, str(os.getpid()) in held.holder) == ("ab" * 32, True)
    assert lease.alive(store.root) == lease.dead(store.root) == ()


def test_a_killed_holder_counts_no_more(store: Store) -> None:
    holder = hold(store.root, "using(ROOT, 'ab' * 32)")
    assert [held.subject for held in lease.alive(store.root)] == ["ab" * 32]
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert lease.alive(store.root) == ()
    assert len(lease.dead(store.root)) == 1


def test_a_number_that_went_to_another_process_does_not_count(store: Store) -> None:
    with lease.using(store.root, "ab" * 32):
        (held,) = lease.alive(store.root)
        pid, born, place = lease.owner().split(".")
        other = held.path.name.replace(lease.owner(), f"{pid}.{int(born) - 1}.{place}")
        held.path.rename(held.path.with_name(other))
        assert lease.alive(store.root) == ()


def test_a_holder_on_another_machine_counts_until_its_time_is_up(store: Store) -> None:
    (store.root / "leases").mkdir()
    path = store.root / "leases" / f"{'ab' * 32}-1.7.{'0' * 12}-box2-0123.lock"
    path.touch()
    assert [(one.subject, one.holder) for one in lease.alive(store.root)] == [("ab" * 32, "process 1 on box2")]
    os.utime(path, (time.time() - lease.LIFETIME - 1,) * 2)
    assert lease.alive(store.root) == ()


def test_writers_share_and_prune_is_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        lease.writing(store.root),
        lease.writing(store.root),
        pytest.raises(StorageError, match=r"repeat this later"),
    ):
        lease.pruning(store.root, patience=0.05).__enter__()
    with lease.pruning(store.root):
        monkeypatch.setattr(lease, "PATIENCE", 0.05)
        with pytest.raises(StorageError, match="is being pruned by process"):
            lease.writing(store.root).__enter__()
        with pytest.raises(StorageError, match="is being pruned by process"):
            lease.using(store.root, "ab" * 32).__enter__()
        with pytest.raises(StorageError, match="is being pruned by process"):
            lease.pruning(store.root, patience=0.05).__enter__()
    assert lease.alive(store.root) == ()


def test_a_writer_that_came_before_the_pruner_finishes_first(store: Store) -> None:
    """Each waits for the other's turn and none for ever."""
    order: list[str] = []

    def prune() -> None:
        with lease.pruning(store.root):
            order.append("pruned")

    with lease.writing(store.root):
        pruner = threading.Thread(target=prune)
        pruner.start()
        while not any(one.subject == lease.PRUNER for one in lease.alive(store.root)):
            time.sleep(0.001)
        order.append("written")
    pruner.join(timeout=30)
    assert order == ["written", "pruned"]


def test_a_killed_pruner_is_in_nobodys_way(store: Store) -> None:
    holder = hold(store.root, "pruning(ROOT)")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with lease.writing(store.root):
        pass
    with lease.pruning(store.root, patience=1):
        pass


def test_a_store_that_cannot_be_written_needs_no_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("cache_tools.lease.fsops.create", read_only)
    with lease.using(store.root, "ab" * 32):
        assert lease.alive(store.root) == ()


def test_owners_of_temporary_files() -> None:
    own = lease.owner()
    assert not lease.is_over(own, 10**6)
    pid, born, place = own.split(".")
    assert lease.is_over(f"{pid}.{int(born) - 1}.{place}", 0)
    elsewhere = f"{pid}.{born}.{'0' * 12}"
    assert not lease.is_over(elsewhere, 60)
    assert lease.is_over(elsewhere, 2 * 86400)
    assert lease.is_over("abcdef", 2 * 86400)
