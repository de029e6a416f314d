"""What ``prune`` prints: the plan, and what became of it.

In: a ``PrunePlan`` and, unless it was a dry run, a ``PruneResult``. Out: one JSON document, or lines for people.
"""

from __future__ import annotations

from cache_tools.prune import PruneResult
from cache_tools.prune_plan import Candidate, PrunePlan
from cache_tools.render import SHORT, emit_json, human_bytes, out
from envguard.cliutil import say


def print_prune(plan: PrunePlan, done: PruneResult | None, *, json: bool) -> None:
    """Print a dry run (``done`` is None) or what was done."""
    if json:
        emit_json(_document(plan, done))
        return
    for one in plan.snapshots:
        fate = f"keep: {', '.join(one.keep)}" if one.keep else "remove"
        stored, names = human_bytes(one.bytes), ", ".join(one.names) or "-"
        out(f"{one.id[:SHORT]}  {stored:>9} stored  used {one.used}  {names}  {fate}")
    if plan.problem:
        say(f"warning: {plan.problem}")
    if done is None:
        packs = len(plan.delete_packs) + len(plan.rewrite_packs)
        counts = len(plan.removed), packs, len(plan.leftovers), plan.bytes_freed
        out(_line("would remove", *counts, plan.bytes_before))
    else:
        out(_line("removed", done.snapshots, done.packs, done.leftovers, done.bytes_freed, plan.bytes_before))


def _line(verb: str, snapshots: int, packs: int, leftovers: int, freed: int, before: int) -> str:
    return (
        f"{verb} {snapshots} snapshots, {packs} packs, {leftovers} leftovers: "
        f"{human_bytes(freed)} of {human_bytes(before)} stored"
    )


def _document(plan: PrunePlan, done: PruneResult | None) -> dict[str, object]:
    removed = done.snapshots if done else len(plan.removed)
    return {
        "status": "pruned" if done else "planned",
        "snapshots": [_row(one) for one in plan.snapshots],
        "removed": removed,
        "packs": done.packs if done else len(plan.delete_packs) + len(plan.rewrite_packs),
        "leftovers": done.leftovers if done else len(plan.leftovers),
        "bytes_before": plan.bytes_before,
        "bytes_freed": done.bytes_freed if done else plan.bytes_freed,
        "problem": plan.problem,
    }


def _row(one: Candidate) -> dict[str, object]:
    return {
        "id": one.id,
        "names": list(one.names),
        "created": one.created,
        "used": one.used,
        "bytes": one.bytes,
        "keep": list(one.keep),
    }
