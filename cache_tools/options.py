"""Options that several commands share, so that each is worded once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from envguard.errors import UsageError


def given_path(text: str) -> Path:
    """The path on a command line; an empty one, as an unset variable leaves it, would mean the current directory.

    Raises:
        UsageError: it is empty.
    """
    if not text:
        raise UsageError("an empty path was given: is a variable unset? give a path, or leave the option out")
    return Path(text)


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="<path>",
        parser=given_path,
        help="The store of snapshots.  [default: $DFLASH_CACHE_STORE, else the data directory]",
    ),
]
SecretsOption = Annotated[
    Literal["fail", "warn"] | None,
    typer.Option("--secrets", help="What to do about secrets.  [default: fail if it is signed, else warn]"),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="<path>",
        parser=given_path,
        help="The private key to sign with.  [default: the one that keygen made]",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
CACHE_HELP = "The cache directory.  [default: $TORCHINDUCTOR_CACHE_DIR, else torch's own default]"
