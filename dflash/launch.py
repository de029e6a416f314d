"""``dflash train`` and ``dflash warmup``: guard, restore, preflight, build, warm up, train, in that order.

In: a configuration. Out: a run directory that says how it ended, or, for a warm-up alone, the account of its compiles.
torch is imported in the middle. ``dry_run`` tells what would happen and touches nothing. The loop is ``train.py``.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import envguard
from cache_tools.observe import observe
from cache_tools.records import write_run
from dflash.compile import policy
from dflash.compile.cache import describe_store, open_cache
from dflash.compile.identity import compile_id
from dflash.compile.stall import end_process
from dflash.config import Config, dump_config
from dflash.console import leave_terminal, log, quiet_libraries, say
from dflash.doctor import examine
from dflash.errors import ConfigError
from dflash.interrupts import ending_at_once, terminated_as_interrupted
from dflash.runs.record import RunDirectory, open_run
from dflash.warm import warm_up
from envguard.errors import DriftError, ToolError
from envguard.report import Report


def launch(config: Config, *, resume: bool, max_steps: int | None, allow_drift: str | None) -> None:
    """Run a training to its end.

    Raises:
        DriftError: the environment has drifted and ``allow_drift`` gives no reason.
        PreflightError: compiling in this process would fail, hang or be dense.
        ToolError: anything else the user can act on; see ``train.py``.
    """
    with (
        terminated_as_interrupted(),
        open_run(Path(config.run.dir), resume=resume, argv=sys.argv) as run,
        contextlib.ExitStack() as held,
    ):
        with ending_at_once(run.interrupted):
            guard(config, run, allow_drift)
        state = open_cache(config.compile.store, _compile_id(config), held) if _uses_cache(config) else None
        here = state.fingerprint if state else observe()
        with ending_at_once(run.interrupted):
            stages = import_torch(config)
            run.write_json("preflight.json", {"schema": 1, "stages": stages})
            from dflash import train
            from dflash.checkpoint import list_checkpoints, load_checkpoint, prune_checkpoints

            imported = time.monotonic()
            found = list_checkpoints(run.checkpoints) if resume else []
            resumed = load_checkpoint(found[-1]) if found else None
            first = resumed.step if resumed else 0
            last = train.last_step(config, first=first, max_steps=max_steps)
            training = train.build(config)
            if resumed:
                train.restore(training, resumed)
                say(f"resume: step {first} of {config.run.steps} from {resumed.path.name}")
            run.accept(dump_config(config), step=first)
            prune_checkpoints(run.checkpoints, keep=config.run.keep_checkpoints)  # a kill may have come in between
            compiled = warm_up(training, state, here, imported, on_stall=run.hung)
            run.write_json("compile.json", compiled.account)
            if compiled.keys:
                write_run(run.path, compiled.keys)
            policy.forbid_recompiles()
        train.train(compiled.training, run, first=first, last=last)
        say(f"done: {last} steps, checkpoint {run.checkpoints / f'step_{last:08d}'}")


def compile_only(config: Config, *, allow_drift: str | None) -> dict[str, Any]:
    """Guard, restore, compile every graph, snapshot, stop; returns what ``compile.json`` of a run would hold.

    Raises:
        ConfigError: compiling is turned off.
        ToolError: as ``launch``.
    """
    if not config.compile.enabled:
        raise ConfigError("compile.enabled = false: there is nothing to warm up")
    with terminated_as_interrupted(), contextlib.ExitStack() as held:
        with ending_at_once():
            judge(config, allow_drift)
        state = open_cache(config.compile.store, _compile_id(config), held) if _uses_cache(config) else None
        here = state.fingerprint if state else observe()
        with ending_at_once():
            import_torch(config)
            from dflash import train

            imported = time.monotonic()
            return warm_up(train.build(config), state, here, imported, on_stall=_hung).account


def _hung(reason: str, stacks: str) -> None:
    leave_terminal()
    end_process(reason, stacks)


def import_torch(config: Config) -> list[dict[str, Any]]:
    """Import torch and everything on top of it, the policy in force before and after, with a preflight at each point.

    Raises:
        PreflightError: see ``compile/preflight.py``.
    """
    policy.prepare_environment()  # after the observations: they tell of the user's environment, not of ours
    started = time.monotonic()
    from dflash.compile import preflight

    policy.apply()
    alone = preflight.check("torch alone", tries=False)
    quiet_libraries()
    from dflash import train
    from dflash.compile.dense import install_tripwire
    from dflash.compile.shapes import graphs_of_one_function, needed_graphs
    from dflash.devices import pick_device

    install_tripwire()
    if not config.compile.enabled:
        return [alone.document()]
    device = pick_device(config.run.device)
    specs = needed_graphs(config, [device.type], attention=train.attention_kind(config, device))
    room = graphs_of_one_function(specs)
    policy.apply(policy.POLICY.with_room(room))
    after = preflight.check("after the imports", policy=policy.POLICY.with_room(room), needed_graphs=room)
    for line in (*alone.repaired, *after.repaired):
        say(f"preflight: {line}")
    for result in (alone, after):
        preflight.require(result)
    handled = ", ".join(hazard.name for hazard in after.handled)
    log.info(
        "imports and preflight: %.1f s; hazards of this torch, all handled: %s", time.monotonic() - started, handled
    )
    return [alone.document(), after.document()]


def guard(config: Config, run: RunDirectory, allow_drift: str | None) -> None:
    """``judge`` for a run: record what was observed, and a permitted drift with its reason."""
    run.write_json("env.json", envguard.freeze())
    report, drift = judge(config, allow_drift)
    if report is None:
        run.update(allowed_drift={"reason": allow_drift, "findings": drift.split("\n")})
    else:
        run.update(env_id=report.env_id)


def judge(config: Config, allow_drift: str | None) -> tuple[Report | None, str]:
    """Judge environment and machine as doctor does; the report of a sound one, or None and the drift that is allowed.

    Raises:
        DriftError: the environment has drifted and ``allow_drift`` gives no reason.
    """
    try:
        report = envguard.enforce(examine(profile=config.run.profile))
    except DriftError as error:
        if not allow_drift:
            raise DriftError(f"{error}\nor go on with --allow-drift REASON, which is recorded in the run") from None
        say(f"warning: the environment has drifted, allowed because: {allow_drift}")
        return None, str(error)
    say(f"guard: {report.profile} profile, {report.judged}: as locked")
    return report, ""


def dry_run(config: Config) -> None:
    """Print, on stdout, the resolved configuration, the guard's verdict, the store, the graphs and the disk needed."""
    print(dump_config(config))
    refused: ToolError | None = None
    try:
        report = envguard.enforce(examine(profile=config.run.profile))
        print(f"guard: pass, profile {report.profile}, {report.judged}")
    except DriftError as error:
        refused = error
        print("guard: fail\n" + "\n".join(f"  {line}" for line in str(error).split("\n")))
    if _uses_cache(config):
        try:
            print(f"store: {describe_store(config.compile.store)}")
        except ToolError as error:
            refused = refused or error
            print(f"store: fail\n  {error}")
    quiet_libraries()
    from dflash import estimate

    for line in estimate.describe(config):
        print(line)
    free = shutil.disk_usage(_existing(Path(config.run.dir))).free
    print(f"disk: {free / 2**30:.1f} GiB free where run.dir is", flush=True)
    if refused:
        raise refused


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _uses_cache(config: Config) -> bool:
    return config.compile.enabled and config.compile.snapshot


def _compile_id(config: Config) -> str:
    """The compile id of this configuration on this machine; the device is known without torch from the driver."""
    from envguard.probes.gpu import driver_version

    device = config.run.device if config.run.device != "auto" else ("cuda" if driver_version() else "cpu")
    return compile_id(config, config.target.model, device)
