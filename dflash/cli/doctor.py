"""``dflash doctor``, through typer: parse, call ``dflash.doctor``, print, exit. It judges nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    project: Annotated[
        Path | None, typer.Option(help="The directory of envguard.toml and uv.lock (default: upwards from here).")
    ] = None,
    profile: Annotated[str, typer.Option(help="A profile of envguard.toml; auto: by the NVIDIA driver.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout (schema 1).")] = False,
) -> None:
    """Judge this environment and machine, and name the command that repairs them."""
    from dflash.doctor import examine
    from envguard.cliutil import write_out
    from envguard.report import FORMATS

    report = examine(project, profile)
    write_out(FORMATS["json" if as_json else "text"](report))
    raise typer.Exit(report.exit_code)
