"""The typer application: which command lives where. ``entry.py`` runs it and turns errors into exit codes.

Nothing here imports torch, rich or zstandard: ``dflash --help`` must answer in a quarter of a second.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from cache_tools import installed
from cache_tools.cli import app as cache_app
from dflash.cli import data, doctor, evaluate, preflight
from dflash.cli import train as train_command

EXIT_CODES = (
    "Exit codes: 0 fine, 1 findings or the run failed, 2 usage or config error, 3 a check crashed, "
    "4 cache incompatible, 5 cache corrupt, 6 cache untrusted, 130 interrupted."
)

app = typer.Typer(
    name="dflash",
    help="Train DFlash drafters reproducibly.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dflash-toolkit {installed.version('dflash_toolkit', Path(sysconfig.get_path('purelib')))}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Say the version and stop.")
    ] = False,
) -> None:
    pass


app.command("doctor")(doctor.doctor)
app.command("preflight")(preflight.preflight)
app.command("warmup")(preflight.warmup)
app.command("train")(train_command.train)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(evaluate.export)
app.add_typer(cache_app, name="cache")
app.add_typer(data.app, name="data")
