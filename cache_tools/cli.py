"""The commands on the compile cache: ``dflash cache …``, ``cache-tools …`` and ``python -m cache_tools …``.

In: arguments. Out: data on stdout, talk on stderr, an exit code. Importing this module costs typer and nothing else:
everything else is imported inside the commands.
"""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Snapshot, verify and restore the torch.compile cache.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Snapshot, verify and restore the torch.compile cache."""
