"""``dflash train``: thin; the work is in ``dflash.launch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="TOML file, see examples/.")],
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=V", help="Override a setting.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in a used run directory.")] = False,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after this step; the schedule stays.")] = None,
    allow_drift: Annotated[
        str | None, typer.Option(metavar="REASON", help="Start in a drifted environment; the reason is recorded.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would happen; touch nothing.")] = False,
) -> None:
    """Guard, restore the compile cache, warm up, train, snapshot, record."""
    from dflash.config import load_config

    resolved = load_config(config, settings or [])
    from dflash import launch

    if dry_run:
        launch.dry_run(resolved)
    else:
        launch.launch(resolved, resume=resume, max_steps=max_steps, allow_drift=allow_drift)
