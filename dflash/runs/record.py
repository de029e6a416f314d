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

from dflash.console import leave_terminal
from dflash.errors import ConfigError, Interrupted
from envguard import cliutil
from envguard.atomic import TEMP_NAME, naming, write_text
from envguard.errors import CRASHED, FINDINGS, INTERRUPTED, ToolError

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
        self.earlier: dict[str, Any] = {}
        """``run.json`` before this start, until the start is accepted; {} for a new run."""
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
                f"to resume from; bring it back, choose another run.dir, or remove this one to begin again"
            )
        write_text(self.path / "config.toml", config_toml)
        write_text(self.metrics_path, "".join(text for number, text in lines if number <= step))
        self.earlier = {}
        self.saved(step)

    def saved(self, step: int) -> None:
        """Record that the newest checkpoint is of ``step``; 0: there is none yet, and nothing to lose."""
        self.update(checkpoint=step)

    def metric(self, values: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with naming(self.metrics_path):
            if self._metrics is None:
                self._metrics = self.metrics_path.open("a")
            self._metrics.write(json.dumps(values) + "\n")
            self._metrics.flush()

    def sync_metrics(self) -> None:
        """The metrics are on the disk, before a checkpoint is: no loss of power leaves a step without its line."""
        if self._metrics:
            with naming(self.metrics_path):
                os.fsync(self._metrics.fileno())

    def interrupted(self, reason: str) -> None:
        """Record that the process ends at once."""
        log.error("%s", reason)
        self.end(status="interrupted", exit=INTERRUPTED, reason=reason)

    def end(self, **how: Any) -> None:
        """Record how the run ended. A start that was not accepted is no end of the run before it, and changes nothing.

        Where even that cannot be written, the record stays at "running": the error in hand is the one to tell.
        """
        try:
            if self.earlier and how["status"] != "finished":
                self.write_json("run.json", self.earlier)
            else:
                self.update(ended=now(), **how)
        except OSError as error:
            log.error("%s", error)

    def hung(self, reason: str, stacks: str) -> NoReturn:
        """Record that nothing moves any more, with the stacks of all threads, and end the process: a deadlock stays."""
        log.error("%s\n%s", reason, stacks)
        self.end(status="hung", exit=FINDINGS, reason=reason)
        cliutil.say(f"error: {reason}")
        leave_terminal()
        os._exit(FINDINGS)

    def close(self) -> None:
        """Close the metrics file; what it could not write, ``metric`` told."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):
                self._metrics.close()


@contextlib.contextmanager
def open_run(path: Path, *, resume: bool, argv: list[str]) -> Iterator[RunDirectory]:
    """Own ``path`` for the time of a run; record how it ends.

    Raises:
        ConfigError: the directory is in use, holds a run (without ``resume``), or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / ".lock", timeout=0).acquire()
    except Timeout:
        raise ConfigError(f"{path}: another process is running in it; choose another run.dir or wait") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{path}: cannot be used as run.dir: {error}") from None
    with lock, _log_to(path / "log.txt"):
        run = RunDirectory(path)
        run.earlier = earlier = _earlier(path, resume)
        try:
            _sweep(path)
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
            yield run
        except BaseException as error:
            if isinstance(error, ToolError):
                log.error("%s", error)
            else:
                log.exception("the run died")
            run.end(**_ending(error))
            raise
        else:
            run.end(status="finished", exit=0, reason=None)
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
        saved = earlier.get("checkpoint", 0)
        if type(saved) is not int or saved < 0:
            raise ValueError("checkpoint is no number of steps")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: damaged: {error}; move it away to resume from the checkpoints alone") from None
    return earlier


def _sweep(path: Path) -> None:
    """Remove what writers of files of the run left that were killed; the directory has one owner."""
    for left in path.iterdir():
        if TEMP_NAME.fullmatch(left.name) and left.is_file():
            left.unlink()


def _how_ended(earlier: dict[str, Any]) -> str | None:
    status = earlier.get("status")
    return "killed" if status == "running" else status


def _ending(error: BaseException) -> dict[str, Any]:
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return {"status": "interrupted", "exit": INTERRUPTED, "reason": str(error) or "interrupted"}
    if isinstance(error, ToolError):
        return {"status": "failed", "exit": error.exit_code, "reason": str(error)}
    code = FINDINGS if isinstance(error, OSError) and error.errno is not None else CRASHED
    return {"status": "failed", "exit": code, "reason": f"{type(error).__name__}: {error}"}


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Everything logged goes to ``path``, and so do the stacks of a fatal signal."""
    root = logging.getLogger()
    logging.raiseExceptions = False  # a full disk must not print a traceback for every line of the log
    sink = path.open("a")
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
        with contextlib.suppress(OSError):  # a full disk, once more: how the run ended is what counts
            sink.close()
