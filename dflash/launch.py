"""``dflash train``: guard, restore, build, warm up, train, in that order; torch is imported in the middle.

In: a configuration file and overrides. Out: a run directory that says how it ended. ``dry_run`` tells what would happen
and touches nothing. The loop itself is ``train.py``.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import envguard
from dflash.compile import policy
from dflash.compile.cache import CacheState, keep_entries, open_cache
from dflash.compile.identity import compile_id
from dflash.config import Config, dump_config
from dflash.console import log, quiet_libraries, say
from dflash.doctor import examine
from dflash.errors import Interrupted
from dflash.runs.record import RunDirectory, open_run
from envguard.errors import DriftError


def launch(config: Config, *, resume: bool, max_steps: int | None, allow_drift: str | None) -> None:
    """Run a training to its end.

    Raises:
        DriftError: the environment has drifted and ``allow_drift`` gives no reason.
        ToolError: anything else the user can act on; see ``train.py``.
    """
    with (
        terminated_as_interrupted(),
        open_run(Path(config.run.dir), resume=resume, argv=sys.argv) as run,
        contextlib.ExitStack() as held,
    ):
        guard(config, run, allow_drift)
        state = open_cache(config.compile.store, _compile_id(config), held) if _uses_cache(config) else None
        policy.prepare_environment()  # after the observations: they tell of the user's environment, not of ours
        started = time.monotonic()
        quiet_libraries()
        from dflash import train
        from dflash.checkpoint import list_checkpoints, load_checkpoint

        policy.apply()
        imported = time.monotonic()
        log.info("imports: %.1f s", imported - started)
        training = train.build(config)
        found = list_checkpoints(run.checkpoints) if resume else []
        resumed = load_checkpoint(found[-1]) if found else None
        if resumed:
            train.restore(training, resumed)
            say(f"resume: step {resumed.step} of {config.run.steps} from {resumed.path.name}")
        start = resumed.step if resumed else 0
        run.accept(dump_config(config), step=start, checkpoint_every=config.run.checkpoint_every)
        warm_up(training, run, state, imported)
        policy.forbid_recompiles()
        done = train.train(training, run, resumed, max_steps=max_steps)
        say(f"done: {done} steps, checkpoint {run.checkpoints / f'step_{done:08d}'}")


def guard(config: Config, run: RunDirectory, allow_drift: str | None) -> None:
    """Judge environment and machine as doctor does; record what was observed, and a permitted drift with its reason."""
    run.write_json("env.json", envguard.freeze())
    try:
        report = envguard.enforce(examine(profile=config.run.profile))
    except DriftError as error:
        if not allow_drift:
            raise DriftError(f"{error}\nor go on with --allow-drift REASON, which is recorded in the run") from None
        say(f"warning: the environment has drifted, allowed because: {allow_drift}")
        run.update(allowed_drift={"reason": allow_drift, "findings": str(error).split("\n")})
    else:
        say(f"guard: {report.profile} profile, {report.judged}: as locked")
        run.update(env_id=report.env_id)


def warm_up(training: Any, run: RunDirectory, state: CacheState | None, imported: float) -> None:
    """Compile every graph, account for it in ``compile.json`` and one line, snapshot what is new."""
    from dflash import train
    from dflash.compile.account import CompileWatch
    from dflash.compile.warmup import warm_up as compile_graphs

    if not training.config.compile.enabled:
        run.write_json("compile.json", {"schema": 1, "enabled": False})
        return
    watch = CompileWatch(state.directory if state else _cache_dir())
    compile_graphs(train.graphs(training), watch)
    account = watch.account()
    cold_ms = round(account.seconds * 1000) if account.hits == 0 else None
    kept = keep_entries(state, watch.used_entries(), build_ms=cold_ms) if state else None
    run.write_json(
        "compile.json",
        {
            "schema": 1,
            "graphs": account.graphs,
            "hits": account.hits,
            "misses": account.misses,
            "fx": {"hits": account.fx_hits, "misses": account.fx_misses},
            "native_builds": account.native_builds,
            "seconds": account.seconds,
            "per_graph": account.per_graph,
            "since_imports": round(time.monotonic() - imported, 3),
            "snapshot": kept,
            "restored": state.match.id if state and state.match else None,
            "compile_id": state.compile_id if state else None,
            "torch": torch_facts(),
        },
    )
    known = state.match.manifest.build_ms if state and state.match and account.hits else None
    cold = f" (cold was {known / 1000:.1f} s)" if known is not None else ""
    shown = f", snapshot {kept[:12]}" if kept else ""
    say(
        f"compile: {account.graphs} graphs, {account.hits} hits, {account.misses} misses, "
        f"{account.seconds:.1f} s{cold}{shown}"
    )


def torch_facts() -> dict[str, Any]:
    """What only a process with torch knows about its compile keys."""
    import torch
    import torch._functorch.config
    import torch._inductor.config

    from envguard.atomic import sha256_bytes

    return {
        "inductor_config": sha256_bytes(torch._inductor.config.save_config_portable().__repr__().encode())[:16],
        "functorch_config": sha256_bytes(torch._functorch.config.save_config_portable().__repr__().encode())[:16],
        "num_threads": torch.get_num_threads(),
        "vec_isa_trusted": torch._inductor.config.cpp.vec_isa_ok,
        "precompiled_headers": torch._inductor.config.cpp_cache_precompile_headers,
    }


def dry_run(config: Config) -> None:
    """Print, on stdout, the resolved configuration, the guard's verdict, the graphs and the disk needed."""
    print(dump_config(config))
    drift: DriftError | None = None
    try:
        report = envguard.enforce(examine(profile=config.run.profile))
        print(f"guard: pass, profile {report.profile}, {report.judged}")
    except DriftError as error:
        drift = error
        print("guard: fail\n" + "\n".join(f"  {line}" for line in str(error).split("\n")))
    quiet_libraries()
    from dflash import estimate

    for line in estimate.describe(config):
        print(line)
    free = shutil.disk_usage(_existing(Path(config.run.dir))).free
    print(f"disk: {free / 2**30:.1f} GiB free where run.dir is", flush=True)
    if drift:
        raise drift


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which schedulers and containers send, ends a run as Ctrl-C does: recorded, exit 130."""

    def on_signal(number: int, _frame: object) -> None:
        raise Interrupted(f"{signal.Signals(number).name} before the first step; start again, or --resume")

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _uses_cache(config: Config) -> bool:
    return config.compile.enabled and config.compile.snapshot


def _cache_dir() -> Path:
    import cache_tools

    return cache_tools.default_cache_dir()


def _compile_id(config: Config) -> str:
    """The compile id of this configuration on this machine; the device is known without torch from the driver."""
    from envguard.probes.gpu import driver_version

    device = config.run.device if config.run.device != "auto" else ("cuda" if driver_version() else "cpu")
    return compile_id(config, config.target.model, device)
