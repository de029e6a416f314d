"""The commands on the compile cache: ``dflash cache …``, ``cache-tools …`` and ``python -m cache_tools …``.

In: arguments. Out: data on stdout, talk on stderr, an exit code. Importing this module costs typer and nothing else:
everything else is imported inside the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cache_tools import cli_trust, cli_understand
from cache_tools.options import CACHE_HELP, JsonOption, KeyOption, SecretsOption, StoreOption, given_path
from envguard import cliutil
from envguard.errors import CORRUPT, OK, UsageError

if TYPE_CHECKING:
    from cache_tools.verify import Verification

app = typer.Typer(
    help="Snapshot, verify and restore the torch.compile cache.",
    epilog=(
        "Exit codes: 0 fine, 1 differences, secrets or a failure, 2 usage error, 3 a check crashed, 4 incompatible, "
        "5 corrupt, 6 untrusted, 130 interrupted, 141 the reader of stdout went away."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("snapshot")
def snapshot_command(
    name: Annotated[str, typer.Option("--name", help="What to call the snapshot.")],
    cache_dir: Annotated[Path | None, typer.Argument(parser=given_path, help=CACHE_HELP, show_default=False)] = None,
    sign: Annotated[bool, typer.Option("--sign", help="Sign it, so that others may restore it.")] = False,
    key: KeyOption = None,
    secrets: SecretsOption = None,
    all_kernels: Annotated[
        bool, typer.Option("--all-kernels", help="Also keep the files of Triton kernels that graph entries hold.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Keep the whole cache directory as a snapshot."""
    from cache_tools.commands import snapshot

    snapshot(name, cache_dir, store, sign=sign, key=key, secrets=secrets, all_kernels=all_kernels, json=json)


@app.command("restore")
def restore_command(
    name: Annotated[str, typer.Argument(help="A snapshot's name, id, or the beginning of its id.", show_default=False)],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="<path>", parser=given_path, help=CACHE_HELP, show_default=False)
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Swap the whole directory.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add what is absent, repair what is broken, keep the rest (the default).")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and stop.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Restore although fatal fields differ.")] = False,
    allow_untrusted: Annotated[
        bool, typer.Option("--allow-untrusted", help="Restore, and so run, code that nobody you trust vouches for.")
    ] = False,
    strict: cli_understand.StrictOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Put a snapshot back, after checking that it fits this machine."""
    from cache_tools.commands import restore

    restore(
        name,
        to,
        store,
        replace=replace,
        merge=merge,
        dry_run=dry_run,
        force=force,
        strict=strict,
        allow_untrusted=allow_untrusted,
        json=json,
    )


@app.command("list")
def list_command(store: StoreOption = None, json: JsonOption = False) -> None:
    """Show the snapshots of a store and whether they fit this machine."""
    from cache_tools import paths, render, report
    from cache_tools.observe import observe
    from cache_tools.store import open_store
    from cache_tools.verify import list_snapshots

    root = store or paths.default_store_dir()
    found = () if store is None and not root.exists() else list_snapshots(open_store(root))
    rows = report.listing(found, observe() if found else None)
    if json:
        render.emit_json({"store": str(root), "snapshots": rows})
    elif rows:
        render.out(report.listing_table(rows))
    else:
        cliutil.say(f"no snapshots in {root}; make one with: dflash cache snapshot --name NAME")
    for one in found:
        if one.problem:
            cliutil.say(f"error: {one.problem}")
    raise typer.Exit(CORRUPT if any(one.problem for one in found) else OK)


@app.command("verify")
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these snapshots.")] = None,
    live: Annotated[
        Path | None,
        typer.Option(
            "--live", metavar="<path>", parser=given_path, help="Check this cache directory, snapshotted or not."
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="With --live: move bad files aside, so that torch builds them again.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Check every bit of a store, or a cache directory that torch writes."""
    from cache_tools import paths, render, report
    from cache_tools.live import check_live, quarantine
    from cache_tools.notes import notes
    from cache_tools.scan import scan
    from cache_tools.verify import verify_store

    if repair and live is None:
        raise UsageError("--repair needs --live DIR: a store has nothing to rebuild from; take the snapshot again")
    if live is not None and not live.is_dir():
        raise UsageError(f"{live} is not a directory: give the cache that torch writes")
    remarks = notes(live, scan(live)) if live else ()
    if repair and (foreign := next((remark for remark in remarks if remark.id == "foreign"), None)):
        raise UsageError(f"{foreign.message} --repair would move files of something else away")
    checked: Verification | None = None
    if live is None or names or store:
        root = store or paths.default_store_dir()
        checked = verify_store(root, names or (), on_progress=render.ProgressLine("verify"))
    bad = check_live(live, deep=True) if live else ()
    repaired = quarantine(live, bad) if live and repair and bad else None
    if json:
        render.emit_json(report.verification_document(checked, live, bad, repaired, remarks))
    else:
        report.print_verification(checked, live, bad, repaired)
    for remark in remarks:
        cliutil.say(f"note: {remark.message}")
    remaining = repaired.busy if repaired else bad
    raise typer.Exit(CORRUPT if remaining or (checked and checked.problems) else OK)


@app.command("prune")
def prune_command(
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", metavar="N", help="Keep the N most recently used snapshots.")
    ] = None,
    keep_within: Annotated[
        str | None, typer.Option("--keep-within", metavar="DURATION", help="Keep those used within 12h, 7d, 4w.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", metavar="SIZE", help="Keep the most recently used that fit: 500MB, 20GB."),
    ] = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="Leave alone what no snapshot names for so long.")
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and stop.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Remove snapshots that no rule keeps, and the space they took; pinned ones and those in use stay."""
    from cache_tools import paths, prune, prune_plan, prune_report, render, units
    from cache_tools.store import open_store

    rules = prune_plan.Rules(
        keep_last=keep_last,
        keep_within=units.seconds(keep_within) if keep_within is not None else None,
        max_size=units.size(max_size) if max_size is not None else None,
        grace=units.seconds(grace),
    )
    vault = open_store(store or paths.default_store_dir())
    plan = prune_plan.plan_prune(vault, rules)
    done = None if dry_run else prune.execute(plan, on_progress=render.ProgressLine("prune"))
    prune_report.print_prune(plan, done, json=json)


@app.command("pin")
def pin_command(
    name: Annotated[str, typer.Argument(help="A snapshot's name, id, or the beginning of its id.", show_default=False)],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Let prune never remove a snapshot (this one, not what its name stands for later)."""
    from cache_tools import paths, pins, render
    from cache_tools.store import open_store

    id_ = pins.pin(open_store(store or paths.default_store_dir()), name)
    render.emit_json({"id": id_, "pinned": True}) if json else render.out(f"{id_[: render.SHORT]}  pinned")


@app.command("unpin")
def unpin_command(
    name: Annotated[str, typer.Argument(help="A snapshot's name, id, or the beginning of its id.", show_default=False)],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Undo pin."""
    from cache_tools import paths, pins, render
    from cache_tools.store import open_store

    id_ = pins.unpin(open_store(store or paths.default_store_dir()), name)
    render.emit_json({"id": id_, "pinned": False}) if json else render.out(f"{id_[: render.SHORT]}  not pinned")


cli_trust.register(app)
app.command("show")(cli_understand.show_command)
app.command("diff")(cli_understand.diff_command)
app.command("explain")(cli_understand.explain_command)
app.command("stats")(cli_understand.stats_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""

    def command(given: list[str]) -> object:
        return app(args=given, prog_name="cache-tools", standalone_mode=False)

    return cliutil.run("cache-tools", command, arguments)
