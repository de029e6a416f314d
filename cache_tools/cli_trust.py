"""The commands about trust: keygen, sign, trust add|list|remove|own. Their bodies are in trust_commands.py.

In: the app of ``cli.py``. Out: the same with these commands. Importing it costs typer and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cache_tools.options import JsonOption, KeyOption, SecretsOption, StoreOption, given_path


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("keygen")(keygen_command)
    app.command("sign")(sign_command)
    app.add_typer(trust_app, name="trust")


def keygen_command(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="<path>",
            parser=given_path,
            help="Where to write the private key.  [default: your trust directory]",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a key to sign snapshots with; never overwrites one."""
    from cache_tools import trust_commands

    trust_commands.keygen(out, json=json)


def sign_command(
    name: Annotated[str, typer.Argument(help="A snapshot's name, id, or the beginning of its id.", show_default=False)],
    key: KeyOption = None,
    secrets: SecretsOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the signature of somebody else.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Sign a snapshot that is there, after looking for secrets in it."""
    from cache_tools import trust_commands

    trust_commands.sign(store, name, key, secrets, replace=replace, json=json)


trust_app = typer.Typer(help="Whose snapshots may be restored here.", no_args_is_help=True, rich_markup_mode=None)


@trust_app.command("add")
def trust_add_command(
    key: Annotated[
        str, typer.Argument(metavar="KEY|FILE", help="A public key (ed25519:...), or a file that holds one.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="What to call it.  [default: the file's name]")] = None,
    json: JsonOption = False,
) -> None:
    """Trust whoever holds the private half of a key: what they signed runs as you."""
    from cache_tools import trust_commands

    trust_commands.add(key, name, json=json)


@trust_app.command("list")
def trust_list_command(json: JsonOption = False) -> None:
    """Show the keys that are trusted."""
    from cache_tools import trust_commands

    trust_commands.show(json=json)


@trust_app.command("remove")
def trust_remove_command(
    key: Annotated[str, typer.Argument(metavar="NAME|KEY", help="What to trust no longer.")], json: JsonOption = False
) -> None:
    """Trust a key no longer: what it signed is refused from now on."""
    from cache_tools import trust_commands

    trust_commands.remove(key, json=json)


@trust_app.command("own")
def trust_own_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Snapshots that you made yourself.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Say that snapshots are your own: made before this was recorded, or with another trust directory."""
    from cache_tools import trust_commands

    trust_commands.own(store, names, json=json)
