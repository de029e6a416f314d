"""The commands that explain: show, diff, explain, stats.

In: arguments. Out: data on stdout, an exit code. ``cli.py`` registers them. Everything is imported inside the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cache_tools.options import JsonOption, StoreOption, given_path
from envguard.errors import INCOMPATIBLE, OK, UsageError

if TYPE_CHECKING:
    from cache_tools.store import Store

StrictOption = Annotated[
    bool, typer.Option("--strict", help="Other libraries of torch and another autocast dtype are fatal too.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="<path>",
        parser=given_path,
        help="The cache directory.  [default: the one of the run, else torch's]",
    ),
]


def show_command(
    name: Annotated[str, typer.Argument(help="A snapshot's name, id, or the beginning of its id.", show_default=False)],
    entries: Annotated[bool, typer.Option("--entries", help="List every entry.")] = False,
    strict: StrictOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show everything about one snapshot, and whether it fits this machine."""
    from cache_tools import paths, render, understanding
    from cache_tools.fingerprint import compare
    from cache_tools.observe import observe
    from cache_tools.store import open_store

    vault = open_store(store or paths.default_store_dir())
    id_ = vault.resolve(name)
    content = vault.read_manifest(id_)
    names = [each for each in vault.names() if vault.read_ref(each) == id_]
    comparison = compare(content.fingerprint, observe(), gpu_kernels=content.gpu_kernels, strict=strict)
    if json:
        render.emit_json(understanding.show_document(id_, names, content, comparison))
        return
    for line in understanding.show_lines(id_, names, content, comparison, entries=entries):
        render.out(line)


def diff_command(
    a: Annotated[str, typer.Argument(metavar="A", help="A snapshot, a run directory or a cache directory.")],
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="The same; or give --env.")] = None,
    env: Annotated[bool, typer.Option("--env", help="Compare with this environment.")] = False,
    strict: StrictOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two caches: what they depend on, field by field, and their entries. Exit 4 if A cannot be used at B."""
    from cache_tools import render, understanding
    from cache_tools.subjects import difference, environment, subject

    if env == (b is not None):
        raise UsageError("diff takes two things to compare: A and B, or A and --env")
    vault = _store_if_any(store)
    found = difference(subject(a, vault), environment() if b is None else subject(b, vault), strict=strict)
    if json:
        render.emit_json(understanding.diff_document(found))
    else:
        for line in understanding.diff_lines(found):
            render.out(line)
    raise typer.Exit(INCOMPATIBLE if found.comparison.fatal else OK)


def explain_command(
    run: Annotated[
        Path, typer.Argument(parser=given_path, help="A run directory, or a directory that TORCH_TRACE filled.")
    ],
    cache_dir: CacheOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Say for each graph of a run whether it hit, and why it missed."""
    from cache_tools import render, understanding
    from cache_tools.coverage import snapshot_keys
    from cache_tools.explain import explain_run
    from cache_tools.stats import own_snapshot, when_started

    vault = _store_if_any(store)
    held = None
    if vault:  # what the run left, and what came after it began, it could not use
        held = snapshot_keys(vault, but=own_snapshot(run), before=when_started(run))
    found = explain_run(run, cache_dir=cache_dir, snapshots=held)
    if json:
        render.emit_json(understanding.explain_document(found))
        return
    for line in understanding.explain_lines(found):
        render.out(line)


def stats_command(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", parser=given_path, help="Run directories.")
    ] = None,
    cache_dir: CacheOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Sizes by kind, hits and misses of runs, seconds saved, coverage, and how the snapshots grow."""
    from cache_tools import paths, records, render, understanding
    from cache_tools.coverage import coverage, newest, used_of
    from cache_tools.observe import observe
    from cache_tools.stats import cache_stats, growth, run_stats

    keys = [records.read_run(run) for run in runs or ()]
    directory = cache_dir or (keys[-1].cache_dir if keys else paths.default_cache_dir())
    if cache_dir is not None and not cache_dir.is_dir():
        raise UsageError(f"{cache_dir} is not a directory: give the cache that torch writes")
    vault = _store_if_any(store)
    used = keys[-1].used if keys else {}
    if vault and not used and (match := newest(vault, None, observe())):
        used = used_of(match.manifest)
    there = directory.is_dir()
    figures = (
        cache_stats(directory) if there else None,
        [run_stats(run) for run in runs or ()],
        growth(vault) if vault else (),
        coverage(directory, used) if used else None,
    )
    if json:
        document = understanding.stats_document(*figures)
        render.emit_json({"cache_dir": str(directory), "store": str(vault.root) if vault else None, **document})
        return
    render.out(f"cache: {directory}{'' if there else ' (not there)'}")
    for line in understanding.stats_lines(*figures):
        render.out(line)


def _store_if_any(given: Path | None) -> Store | None:
    """The store; None where none was asked for and the default one does not exist."""
    from cache_tools import paths
    from cache_tools.store import open_store

    root = given or paths.default_store_dir()
    return None if given is None and not root.exists() else open_store(root)
