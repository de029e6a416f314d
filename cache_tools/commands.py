"""What ``snapshot`` and ``restore`` do between their arguments and their output.

In: parsed arguments. Out: data on stdout, talk on stderr; errors are raised. Apart from ``cli.py``, so that these two,
for which jobs wait, can start without typer; see ``entry.py``.
"""

from __future__ import annotations

from pathlib import Path

from cache_tools import paths, render
from cache_tools.observe import observe
from envguard import cliutil
from envguard.errors import UsageError


def snapshot(
    name: str,
    cache_dir: Path | None,
    store: Path | None,
    *,
    sign: bool = False,
    key: Path | None = None,
    secrets: str | None = None,
    all_kernels: bool = False,
    json: bool,
) -> None:
    """Keep the whole cache directory as a snapshot."""
    from cache_tools import trust, trust_commands
    from cache_tools.snapshot import snapshot as take_snapshot
    from cache_tools.store import check_name, create_store
    from cache_tools.target import check_apart

    check_name(name)
    source = cache_dir or paths.default_cache_dir()
    if not source.is_dir():
        raise UsageError(f"{source} is not a directory: give the cache that torch writes")
    signer = trust_commands.signing_key(key, wanted=sign)
    scanner = trust_commands.scanner(secrets, shared=sign)
    root = store or paths.default_store_dir()
    check_apart(root, {"the cache": source}, option="--store")
    vault = create_store(root)
    done = take_snapshot(
        vault,
        source,
        name=name,
        fingerprint=observe(),
        scanner=scanner,
        all_kernels=all_kernels,
        on_progress=render.ProgressLine(f"snapshot {name}"),
    )
    if signer:
        trust.sign(vault, done.id, signer)
    trust_commands.tell(scanner, shared=sign)
    if json:
        render.emit_json(
            {
                "name": name,
                "id": done.id,
                "new": done.new,
                "entries": done.entries,
                "bytes": done.bytes,
                "blobs_written": done.blobs_written,
                "skipped": dict(done.skipped),
                "signed_by": signer.public if signer else None,
                **trust_commands.findings_document(scanner),
                "cache_dir": str(source),
                "store": str(vault.root),
            }
        )
        return
    state = f"{done.blobs_written} new blobs" if done.new else "unchanged"
    state += ", signed" if signer else ""
    held = f"{done.entries} entries, {render.human_bytes(done.bytes)}"
    render.out(f"{name}  {done.id[: render.SHORT]}  {held}, {state}, from {source}")
    if left := ", ".join(f"{count} {reason}" for reason, count in done.skipped.items()):
        cliutil.say(f"left out: {left}")


def restore(
    name: str,
    to: Path | None,
    store: Path | None,
    *,
    replace: bool,
    merge: bool,
    dry_run: bool,
    force: bool,
    strict: bool = False,
    allow_untrusted: bool = False,
    json: bool,
) -> None:
    """Put a snapshot back, after checking that it fits this machine."""
    from cache_tools import report
    from cache_tools.restore import Mode, execute, plan_restore
    from cache_tools.store import open_store
    from cache_tools.target import check_mergeable

    if replace and merge:
        raise UsageError("--replace and --merge exclude each other: give one")
    vault = open_store(store or paths.default_store_dir())
    mode = Mode.REPLACE if replace else Mode.MERGE
    target = to or paths.default_cache_dir()
    plan = plan_restore(vault, name, target, mode=mode, strict=strict, allow_untrusted=allow_untrusted)
    if to and mode is Mode.MERGE:  # not torch's own directory, in which a stray file must not end a run
        check_mergeable(to)
    if plan.trust.reason:
        cliutil.say(f"warning: UNTRUSTED code, allowed by --allow-untrusted: {plan.trust.reason}")
    refused = bool(plan.comparison.fatal) and not force
    for field in (*(() if refused else plan.comparison.fatal), *plan.comparison.degrading):
        cliutil.say(render.field_line(field))  # a refusal names the fatal ones itself
    if remark := render.autocast_remark(plan.comparison):
        cliutil.say(f"note: {remark}")
    if dry_run or refused:
        report.print_plan(plan, status="refused" if refused else "planned", json=json)
    if dry_run and not refused:
        return
    done = execute(plan, force=force, on_progress=render.ProgressLine(f"restore {name}"))
    if json:
        counts = {"added": done.added, "repaired": done.repaired, "present": done.present, "kept": done.kept}
        render.emit_json({"status": "restored", **report.plan_document(plan), **counts, "bytes": done.bytes})
        return
    line = f"{done.added} added, {done.repaired} repaired, {done.present} present, {done.kept} kept"
    render.out(f"{plan.id[: render.SHORT]} -> {plan.target}: {line} ({render.human_bytes(done.bytes)} written)")
