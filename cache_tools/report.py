"""The documents and the text of the longer commands: list, verify and a restore's dry run.

In: results of the library. Out: records for ``--json``, and plain lines. It decides nothing but the wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cache_tools.fingerprint import Fingerprint, compare
from cache_tools.live import BadFile, Quarantine
from cache_tools.notes import Note
from cache_tools.plan import Action, RestorePlan
from cache_tools.render import SHORT, emit_json, field_json, human_bytes, out, shown, table, verdict
from cache_tools.trust import Verdict
from cache_tools.verify import Listed, Verification


def plan_document(plan: RestorePlan) -> dict[str, object]:
    """What a restore is about, for programs."""
    return {
        "id": plan.id,
        "target": str(plan.target),
        "mode": plan.mode.value,
        "trust": trust_document(plan.trust),
        "compatible": not plan.comparison.fatal,
        "differences": [field_json(field) for field in (*plan.comparison.fatal, *plan.comparison.degrading)],
    }


def trust_document(verdict: Verdict | None) -> dict[str, object] | None:
    """Whether a snapshot may be restored, for programs."""
    if verdict is None:
        return None
    return {"standing": verdict.standing.value, "signer": verdict.signer, "reason": verdict.reason or None}


def print_plan(plan: RestorePlan, *, status: str, json: bool) -> None:
    """What a dry run or a refused restore says."""
    counts = {action.value: plan.count(action) for action in Action}
    if json:
        emit_json({"status": status, **plan_document(plan), "plan": counts, "removed": plan.removed})
        return
    how = "the whole directory at once" if plan.whole else "file by file"
    how += f", {plan.removed} files there go" if plan.removed else ""
    words = ", ".join(f"{count} to {word}" for word, count in counts.items() if count and word != Action.PRESENT)
    out(f"{plan.id[:SHORT]} -> {plan.target}, {how}: {words or 'nothing to do'}, {counts['present']} present")


def listing(found: Sequence[Listed], here: Fingerprint | None) -> list[dict[str, object]]:
    """One record a snapshot; ``here`` is what its fingerprint is compared with."""
    return [_row(one, _fits(one, here)) for one in found]


def listing_table(rows: Sequence[dict[str, object]]) -> str:
    """The records as aligned text."""
    columns = ("name", "id", "bytes", "entries", "torch", "cpu_isa", "gpu", "created", "trust", "fits")
    cells = [[_cell(column, row) for column in columns] for row in rows]
    return table([column.upper().replace("BYTES", "SIZE") for column in columns], cells)


def _fits(one: Listed, here: Fingerprint | None) -> str:
    if one.manifest is None or here is None:
        return "corrupt"
    return verdict(compare(one.manifest.fingerprint, here, gpu_kernels=one.manifest.gpu_kernels))


def _row(one: Listed, fits: str) -> dict[str, object]:
    content = one.manifest
    values = content.fingerprint.values if content else {}
    return {
        "name": one.name,
        "id": one.id,
        "bytes": content.size if content else None,
        "entries": len(content.entries) if content else None,
        "torch": values.get("torch_version"),
        "cpu_isa": values.get("cpu_isa"),
        "gpu": values.get("gpu_name"),
        "compile_id": content.compile_id if content else None,
        "build_ms": content.build_ms if content else None,
        "created": content.created if content else None,
        "trust": str(one.trust) if one.trust else None,
        "fits": fits,
        "problem": one.problem,
    }


def _cell(column: str, row: dict[str, object]) -> str:
    value = row[column]
    if value is None:
        return "-"
    if column == "bytes":
        return human_bytes(int(str(value)))
    return str(value)[: {"id": SHORT, "created": 19}.get(column, 200)]


def verification_document(
    checked: Verification | None,
    live: Path | None,
    bad: tuple[BadFile, ...],
    repaired: Quarantine | None,
    remarks: Sequence[Note] = (),
) -> dict[str, object]:
    """What ``verify`` found, for programs."""
    broken = bool(repaired.busy if repaired else bad) or bool(checked and checked.problems)
    document: dict[str, object] = {"status": "corrupt" if broken else "ok", "store": None, "live": None}
    if checked:
        problems = [{"path": problem.path, "reason": problem.reason} for problem in checked.problems]
        document["store"] = {"snapshots": checked.snapshots, "blobs": checked.blobs, "problems": problems}
    if live:
        moved = repaired.moved if repaired else ()
        closed = repaired.closed if repaired else ()
        files = [
            {
                "path": file.path,
                "kind": file.kind.value,
                "reason": file.reason,
                "folder": file.folder,
                "moved": file in moved,
                "closed": file in closed,
            }
            for file in bad
        ]
        folder = str(repaired.folder) if repaired and repaired.folder else None
        told = [{"id": remark.id, "message": remark.message} for remark in remarks]
        document["live"] = {"directory": str(live), "bad": files, "quarantine": folder, "notes": told}
    return document


def print_verification(
    checked: Verification | None, live: Path | None, bad: tuple[BadFile, ...], repaired: Quarantine | None
) -> None:
    """What ``verify`` found, for people."""
    if checked:
        for problem in checked.problems:
            out(f"corrupt: {shown(problem.path)}: {problem.reason}")
        state = f"{len(checked.problems)} corrupt" if checked.problems else "all intact"
        out(f"store: {checked.snapshots} snapshots, {checked.blobs} blobs: {state}")
    if live:
        moved = repaired.moved if repaired else ()
        closed = repaired.closed if repaired else ()
        for file in bad:
            state = "moved" if file in moved else "closed" if file in closed else "bad"
            out(f"{state}: {shown(file.path)}: {file.reason}")
        where = f", {len(moved)} moved to {repaired.folder}" if repaired and repaired.folder else ""
        out(f"{live}: {len(bad)} bad files{where}")
