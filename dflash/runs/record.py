"""A run directory: opened before anything can fail, and always saying how the run ended.

In: a directory and the resolved configuration. Out: ``run.json`` (status, exit, reason, newest checkpoint),
``config.toml``, ``env.json``, ``log.txt``, ``metrics.jsonl``, ``compile.json``, ``cache_keys.json``. One process owns
it at a time (a lock that dies with its holder). It imports no torch and knows nothing of training. A run that is killed
leaves status "running" and no lock holder; the next ``--resume`` notes that.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from filelock import FileLock, Timeout

from dflash.errors import ConfigError, Interrupted
from envguard.atomic import write_text
from envguard.errors import CRASHED, FINDINGS, INTERRUPTED, ToolError, UsageError

log = logging.getLogger("dflash")


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class RunDirectory:
    """The files of one run; use it through ``open_run``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics_path = path / "metrics.jsonl"
        self.record: dict[str, Any] = {}
        self._metrics: IO[str] | None = None

    def update(self, **fields: Any) -> None:
        """Change fields of ``run.json``, atomically."""
        self.record.update(fields)
        self.write_json("run.json", self.record)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run, atomically."""
        write_text(self.path / name, json.dumps(value, indent=1, sort_keys=False) + "\n")

    def accept(self, config_toml: str, *, step: int) -> None:
        """Begin after ``step``, which has a checkpoint or is 0: write the configuration, cut the metrics there.

        Raises:
            ConfigError: the metrics are damaged, or there was a checkpoint and there is none any more.
        """
        lines = read_metrics(self.metrics_path)
        reached = lines[-1][0] if lines else 0
        saved = self.record.get("checkpoint", reached)  # where the record is gone, assume the worst
        if step == 0 and saved:
            raise ConfigError(
                f"{self.path}: its run reached step {max(saved, reached)}, but {self.checkpoints} holds no checkpoint "
                f"to resume from; bring it back, or choose another run.dir"
            )
        write_text(self.path / "config.toml", config_toml)
        write_text(self.metrics_path, "".join(text for number, text in lines if number <= step))
        self.saved(step)

    def saved(self, step: int) -> None:
        """Record that the newest checkpoint is of ``step``; 0: there is none yet, and nothing to lose."""
        self.update(checkpoint=step)

    def metric(self, values: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        if self._metrics is None:
            self._metrics = self.metrics_path.open("a")
        self._metrics.write(json.dumps(values) + "\n")
        self._metrics.flush()

    def interrupted(self, error: Interrupted) -> None:
        """Record that the process ends at once."""
        log.error("%s", error)
        self.update(ended=now(), **_ending(error))

    def hung(self, reason: str, stacks: str) -> NoReturn:
        """Record that nothing moves any more, with the stacks of all threads, and end the process: a deadlock stays."""
        log.error("%s\n%s", reason, stacks)
        self.update(status="hung", exit=FINDINGS, reason=reason, ended=now())
        print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(FINDINGS)

    def close(self) -> None:
        """Close the metrics file."""
        if self._metrics is not None:
            self._metrics.close()


@contextlib.contextmanager
def open_run(path: Path, *, resume: bool, argv: list[str]) -> Iterator[RunDirectory]:
    """Own ``path`` for the time of a run; record how it ends.

    Raises:
        ConfigError: the directory is in use, holds a run (without ``resume``), or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{path}: another process is running in it; choose another run.dir or wait") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{path}: cannot be used as run.dir: {error}") from None
    with lock, _log_to(path / "log.txt"):
        run = RunDirectory(path)
        earlier = _earlier(path, resume)
        run.update(
            schema=1,
            status="running",
            exit=None,
            reason=None,
            started=now(),
            ended=None,
            pid=os.getpid(),
            argv=argv,
            starts=[*earlier.get("starts", []), {"at": now(), "after": _how_ended(earlier)}],
            **({"checkpoint": earlier["checkpoint"]} if "checkpoint" in earlier else {}),
        )
        try:
            yield run
        except UsageError as error:
            log.error("%s", error)
            if earlier:  # a start that was refused is no end of the run before it
                run.write_json("run.json", earlier)
            else:
                run.update(ended=now(), **_ending(error))
            raise
        except BaseException as error:
            run.update(ended=now(), **_ending(error))
            if isinstance(error, ToolError):
                log.error("%s", error)
            else:
                log.exception("the run died")
            raise
        else:
            run.update(status="finished", exit=0, reason=None, ended=now())
        finally:
            run.close()


def read_metrics(path: Path) -> list[tuple[int, str]]:
    """(step, line with its newline) of every complete line; a half-written last line is left out.

    Raises:
        ConfigError: a complete line is not a metric.
    """
    if not path.exists():
        return []
    lines = []
    for number, raw in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            step = json.loads(raw)["step"]
            if type(step) is not int:
                raise ValueError("step is no integer")
            lines.append((step, raw.decode() + "\n"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path}:{number}: damaged ({error}); mend or delete the line to resume") from None
    return lines


def _earlier(path: Path, resume: bool) -> dict[str, Any]:
    """``run.json`` of the run that is resumed, or {} for a new one; a start that came to nothing is no run."""
    used = any((path / "checkpoints").glob("step_*")) or bool(read_metrics(path / "metrics.jsonl"))
    if not resume:
        if used:
            raise ConfigError(f"{path}: holds a run already; use --resume to go on with it, or choose another run.dir")
        return {}
    file = path / "run.json"
    if not file.exists():
        return {}
    try:
        earlier = json.loads(file.read_text())
        if not isinstance(earlier, dict) or not isinstance(earlier.get("starts"), list):
            raise ValueError("not a run record")
        if type(earlier.get("checkpoint", 0)) is not int:
            raise ValueError("checkpoint is no integer")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: damaged: {error}; move it away to resume from the checkpoints alone") from None
    return earlier


def _how_ended(earlier: dict[str, Any]) -> str | None:
    status = earlier.get("status")
    return "killed" if status == "running" else status


def _ending(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return {"status": "interrupted", "exit": INTERRUPTED, "reason": str(error) or "interrupted"}
    if isinstance(error, ToolError):
        return {"status": "failed", "exit": error.exit_code, "reason": str(error)}
    code = FINDINGS if isinstance(error, OSError) else CRASHED
    return {"status": "failed", "exit": code, "reason": f"{type(error).__name__}: {error}"}


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Everything logged goes to ``path``, and so do the stacks of a fatal signal."""
    root = logging.getLogger()
    logging.raiseExceptions = False  # a full disk must not print a traceback for every line of the log
    with path.open("a") as sink:
        handler = logging.StreamHandler(sink)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        log.setLevel(logging.INFO)
        faulthandler.enable(sink)
        log.info("%s, Python %s, pid %d", " ".join(sys.argv), sys.version.split()[0], os.getpid())
        try:
            yield
        finally:
            faulthandler.disable()
            root.removeHandler(handler)
