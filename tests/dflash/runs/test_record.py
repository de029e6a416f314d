"""The run directory: who may use it, what it says of the end, and what a refused start leaves as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import ConfigError, Interrupted, RunError
from dflash.runs.record import open_run, read_metrics
from envguard.errors import DriftError
from tests.cache_tools.helpers import tmpfs


def record(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "run.json").read_text())
    return document


def finish(path: Path, steps: int = 3, *, checkpoint: bool = True) -> None:
    """A run that did ``steps`` steps."""
    with open_run(path, resume=False, argv=["dflash"]) as run:
        run.accept("x = 1\n", step=0)
        for step in range(1, steps + 1):
            run.metric({"step": step, "loss": 1.0})
        if checkpoint:
            (path / "checkpoints" / f"step_{steps:08d}").mkdir(parents=True)
            run.saved(steps)


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["exit"]) == ("finished", 0)
    assert [step for step, _ in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RunError("the loss is nan"), "failed", 1),
        (Interrupted("SIGTERM"), "interrupted", 130),
        (KeyboardInterrupt(), "interrupted", 130),
        (OSError(28, "No space left on device"), "failed", 1),
        (ZeroDivisionError("x"), "failed", 3),
    ],
)
def test_every_end_is_recorded(tmp_path: Path, error: BaseException, status: str, code: int) -> None:
    with pytest.raises(type(error)), open_run(tmp_path / "run", resume=False, argv=[]):
        raise error
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["exit"]) == (status, code)


def test_a_run_needs_resume_even_where_its_record_is_gone(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ConfigError, match="holds a run already"), open_run(tmp_path / "run", resume=False, argv=[]):
        pass


def test_a_start_that_came_to_nothing_can_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(RunError), open_run(tmp_path / "run", resume=False, argv=[]):
        raise RunError("the guard refused")
    with open_run(tmp_path / "run", resume=False, argv=[]):
        pass
    assert record(tmp_path / "run")["status"] == "finished"


def fail(path: Path, error: BaseException, *, accepted: bool) -> None:
    """A resume that ends with ``error``."""
    with open_run(path, resume=True, argv=[]) as run:
        run.update(env_id="another")
        if accepted:
            run.accept("x = 2\n", step=3)
        if isinstance(error, KeyboardInterrupt):
            run.interrupted("SIGTERM")
        raise error


@pytest.mark.parametrize(
    "error",
    [ConfigError("another learning rate"), DriftError("PKG004 numpy"), KeyboardInterrupt(), OSError(28, "full")],
    ids=lambda error: type(error).__name__,
)
def test_a_start_that_was_not_accepted_is_no_end_of_the_run_before_it(tmp_path: Path, error: BaseException) -> None:
    finish(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(type(error)):
        fail(tmp_path / "run", error, accepted=False)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert (tmp_path / "run" / "config.toml").read_text() == "x = 1\n"


def test_one_that_was_accepted_is(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    with pytest.raises(ConfigError):
        fail(tmp_path / "run", ConfigError("a compile that cannot be"), accepted=True)
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["exit"]) == ("failed", 2)


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    (tmp_path / "run" / ".tmp-0123456789abcdef").write_text("{")
    (tmp_path / "run" / ".tmp-of-mine").write_text("x")
    (tmp_path / "run" / ".tmp-fedcba9876543210").mkdir()
    with open_run(tmp_path / "run", resume=True, argv=[]):
        pass
    left = sorted(path.name for path in (tmp_path / "run").glob(".tmp-*"))
    assert left == [".tmp-fedcba9876543210", ".tmp-of-mine"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    with tmpfs(tmp_path / "small", 64) as where:
        yield where


def fill(path: Path, filler: Path, error: Exception | None) -> None:
    """A run whose disk fills up, and that then ends with ``error``, or with what a metric's line meets."""
    with open_run(path, resume=False, argv=["x" * 5000]) as run:
        run.accept("x = 1\n", step=0)
        filler.write_bytes(bytes(shutil.disk_usage(path).free))
        if error:
            raise error
        while True:
            run.metric({"step": 1, "loss": "x" * 1000})


@pytest.mark.parametrize("error", [RunError("nan " * 3000), ConfigError("no " * 3000), Interrupted("SIGTERM"), None])
def test_a_full_disk_hides_no_error_and_names_the_file(small: Path, error: Exception | None) -> None:
    with pytest.raises(type(error) if error else OSError) as caught:
        fill(small / "run", small / "filler", error)
    if not error:
        assert getattr(caught.value, "filename", None) == str(small / "run" / "metrics.jsonl")
    (small / "filler").unlink()
    resume_from_nothing(small / "run")
    assert record(small / "run")["status"] == "finished"


def test_a_killed_run_is_noted_by_the_next(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    killed = record(tmp_path / "run") | {"status": "running", "exit": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps(killed))
    with open_run(tmp_path / "run", resume=True, argv=[]):
        pass
    assert [start["after"] for start in record(tmp_path / "run")["starts"]] == [None, "killed"]


def test_metrics_are_cut_where_a_resume_goes_on_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 4, "lo')
    with open_run(tmp_path / "run", resume=True, argv=[]) as run:
        run.accept("x = 2\n", step=2)
    assert [step for step, _ in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2]


def resume_from_nothing(path: Path) -> None:
    with open_run(path, resume=True, argv=[]) as run:
        run.accept("x = 2\n", step=0)


@pytest.mark.parametrize("without", ["checkpoints", "checkpoints and record", "checkpoints and metrics"])
def test_a_run_whose_checkpoints_are_gone_is_not_thrown_away(tmp_path: Path, without: str) -> None:
    finish(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step_00000003").rmdir()
    if "record" in without:
        (tmp_path / "run" / "run.json").unlink()
    if "metrics" in without:
        (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"reached step 3, but .* holds no checkpoint"):
        resume_from_nothing(tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_text() == "x = 1\n"
    if "metrics" not in without:
        assert [step for step, _ in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize("kills", [1, 2])
def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path, kills: int) -> None:
    """However far it came: the kill may fall between a step's line and its checkpoint."""
    finish(tmp_path / "run", checkpoint=False)
    for _ in range(kills):
        killed = record(tmp_path / "run") | {"status": "running", "exit": None}
        (tmp_path / "run" / "run.json").write_text(json.dumps(killed))
        resume_from_nothing(tmp_path / "run")
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == []
    assert (tmp_path / "run" / "config.toml").read_text() == "x = 2\n"


@pytest.mark.parametrize("line", [b"garbage", b"[]", b"{}", b'{"step": "x"}', b'{"step": null}', b"\xff\xfe", b""])
def test_a_damaged_metric_is_named(tmp_path: Path, line: bytes) -> None:
    finish(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as metrics:
        metrics.write(line + b"\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:4: damaged"):
        read_metrics(tmp_path / "run" / "metrics.jsonl")


DAMAGED = ["", "3", "null", "[]", '{"starts": 3}', "[" * 5000]
NO_STEPS = [f'{{"starts": [], "checkpoint": {value}}}' for value in ('"4"', "-3", "null", "4.0")]


@pytest.mark.parametrize("content", DAMAGED + NO_STEPS)
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    finish(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=r"run\.json: damaged"), open_run(tmp_path / "run", resume=True, argv=[]):
        pass


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    with (
        open_run(tmp_path / "run", resume=False, argv=[]),
        pytest.raises(ConfigError, match="another process is running in it"),
        open_run(tmp_path / "run", resume=True, argv=[]),
    ):
        pass
    with pytest.raises(ConfigError, match="cannot be used"), open_run(Path("/proc/nowhere"), resume=False, argv=[]):
        pass
