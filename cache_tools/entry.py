"""The console script: plain calls of ``snapshot`` and ``restore`` start at once, all else goes through ``cli.py``.

In: arguments. Out: an exit code. Building the command line costs 0.2 s (typer, pydantic), half of a snapshot of an
unchanged cache. It decides nothing: whatever is not a plain call, help and mistakes included, is typer's to read.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from cache_tools import memory
from envguard import cliutil

_SNAPSHOT = {"--name": True, "--store": True, "--json": False}
_RESTORE = {"--to": True, "--store": True, "--json": False, "--merge": False, "--replace": False, "--dry-run": False}


def console() -> NoReturn:
    """The console script: ``main``, and out at once.

    (Everything has been flushed then; freeing thousands of records one by one takes 10 to 16 ms.)
    """
    os._exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""

    def command(given: list[str]) -> object:
        if (plain := plain_call(given)) is not None:
            memory.keep_freed()
            gc.disable()  # a short life with many small records and no cycles among them
            plain()
            return None
        from cache_tools.cli import app

        return app(args=given, prog_name="cache-tools", standalone_mode=False)

    return cliutil.run("cache-tools", command, arguments)


def plain_call(given: Sequence[str]) -> Callable[[], None] | None:
    """The call that the arguments spell out, if they are plain; None for typer to read them."""
    if given[:1] == ["snapshot"] and (read := _read(given[1:], _SNAPSHOT)) is not None:
        places, options = read
        if len(places) <= 1 and "--name" in options:
            return lambda: _snapshot(places, options)
    if given[:1] == ["restore"] and (read := _read(given[1:], _RESTORE)) is not None:
        places, options = read
        if len(places) == 1:
            return lambda: _restore(places[0], options)
    return None


def _read(given: Sequence[str], known: dict[str, bool]) -> tuple[list[str], dict[str, str]] | None:
    """Positional arguments and options (``known``: name → takes a value); None if anything is out of the ordinary."""
    places: list[str] = []
    options: dict[str, str] = {}
    rest = list(given)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            places.append(word)
        elif word not in known or word in options or (known[word] and (not rest or rest[0].startswith("-"))):
            return None
        else:
            options[word] = rest.pop(0) if known[word] else ""
    return (places, options) if all(places) and all(options[name] or not known[name] for name in options) else None


def _snapshot(places: list[str], options: dict[str, str]) -> None:
    from cache_tools.commands import snapshot

    cache_dir = Path(places[0]) if places else None
    snapshot(options["--name"], cache_dir, _path(options, "--store"), json="--json" in options)


def _restore(name: str, options: dict[str, str]) -> None:
    from cache_tools.commands import restore

    restore(
        name,
        _path(options, "--to"),
        _path(options, "--store"),
        replace="--replace" in options,
        merge="--merge" in options,
        dry_run="--dry-run" in options,
        force=False,
        json="--json" in options,
    )


def _path(options: dict[str, str], name: str) -> Path | None:
    return Path(options[name]) if name in options else None
