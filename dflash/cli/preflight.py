"""``dflash preflight`` and ``dflash warmup``: thin; the work is in ``inspect_compile.py`` and ``launch.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dflash.errors import ConfigError

Settings = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=V", help="Override a setting.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def preflight(
    config: Annotated[Path | None, typer.Argument(help="TOML file: also its devices and shapes.")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> int:
    """Try whether compiling is safe here: with torch alone, after all imports, and on each GPU."""
    from dflash.config import load_config

    if settings and config is None:
        raise ConfigError(
            "--set overrides a setting of a CONFIG, and none was given: dflash preflight CONFIG --set A.B=V"
        )
    resolved = load_config(config, settings or []) if config else None
    from dflash.inspect_compile import inspect_compile
    from dflash.interrupts import ending_at_once

    with ending_at_once():  # it writes nothing
        results = inspect_compile(resolved)
    gravest = max(results, key=lambda result: result.exit_code)
    if as_json:
        stages = [result.document() for result in results]
        print(json.dumps({"schema": 1, "status": gravest.status, "stages": stages}))
    else:
        from dflash.compile.preflight import render

        for result in results:
            print(render(result), end="")
    return gravest.exit_code


def warmup(
    config: Annotated[Path, typer.Argument(help="TOML file, see examples/.")],
    settings: Settings = None,
    allow_drift: Annotated[
        str | None, typer.Option(metavar="REASON", help="Start in a drifted environment; the reason is told.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile every graph that a training needs, forward and backward, snapshot them, stop."""
    from dflash.config import load_config

    resolved = load_config(config, settings or [])
    from dflash import launch

    account = launch.compile_only(resolved, allow_drift=allow_drift)
    if as_json:
        print(json.dumps(account))
