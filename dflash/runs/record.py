"""A run directory: opened before anything can fail, and always saying how the run ended.

In: a directory and the resolved configuration. Out: ``run.json`` (status, exit, reason), ``config.toml``, ``env.json``,
``log.txt``, ``metrics.jsonl``, ``compile.json``. One process owns it at a time (a lock that dies with its holder). It
imports no torch and knows nothing of training. A run that is killed leaves status "running" and no lock holder; the
next ``--resume`` notes that.
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
from typing import IO, Any

from filelock import FileLock, Timeout

from dflash.errors import ConfigError, Interrupted
from envguard.atomic import write_text
from envguard.errors import INTERRUPTED, ToolError

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

    def keep_metrics_until(self, step: int) -> None:
        """Cut ``metrics.jsonl`` after the line of ``step`` (0: empty), where a resumed run goes on."""
        kept = []
        if self.metrics_path.exists():
            for line in self.metrics_path.read_text().split("\n")[:-1]:  # what follows the last newline is half a line
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        write_text(self.metrics_path, "".join(kept))

    def metric(self, values: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        if self._metrics is None:
            self._metrics = self.metrics_path.open("a")
        self._metrics.write(json.dumps(values) + "\n")
        self._metrics.flush()

    def close(self) -> None:
        """Close the metrics file."""
        if self._metrics is not None:
            self._metrics.close()


@contextlib.contextmanager
def open_run(path: Path, *, resume: bool, config_toml: str, argv: list[str]) -> Iterator[RunDirectory]:
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
    except OSError as error:
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
        )
        write_text(path / "config.toml", config_toml)
        try:
            yield run
        except BaseException as error:
            run.update(ended=now(), **_ending(error))
            if not isinstance(error, ToolError):
                log.exception("the run died")
            else:
                log.error("%s", error)
            raise
        else:
            run.update(status="finished", exit=0, reason=None, ended=now())
        finally:
            run.close()


def _earlier(path: Path, resume: bool) -> dict[str, Any]:
    file = path / "run.json"
    if not file.exists():
        return {}
    if not resume:
        raise ConfigError(f"{path}: holds a run already; use --resume to go on with it, or choose another run.dir")
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: damaged: {error}; move it away to resume from the checkpoints alone") from None


def _how_ended(earlier: dict[str, Any]) -> str | None:
    status = earlier.get("status")
    return "killed" if status == "running" else status


def _ending(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return {"status": "interrupted", "exit": INTERRUPTED, "reason": str(error) or "interrupted"}
    if isinstance(error, ToolError):
        return {"status": "failed", "exit": error.exit_code, "reason": str(error)}
    return {"status": "failed", "exit": 3, "reason": f"{type(error).__name__}: {error}"}


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Everything logged goes to ``path``, and so do the stacks of a fatal signal."""
    root = logging.getLogger()
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
