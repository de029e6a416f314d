"""The documents and the text of show, diff, explain and stats.

In: results of the library. Out: records for ``--json``, and lines for people. It decides nothing but the wording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from cache_tools import render
from cache_tools.coverage import Coverage
from cache_tools.explain import Explained, Explanation
from cache_tools.fingerprint import Comparison, FieldComparison, Verdict
from cache_tools.manifest import Manifest
from cache_tools.render import SHORT, human_bytes
from cache_tools.stats import CacheStats, Growth, RunStats
from cache_tools.subjects import Difference, KindDifference
from cache_tools.trace import Cache, Outcome

LISTED = 5
"""Paths of each sort that are listed without ``--json``."""


def field_lines(comparison: Comparison, a: str, b: str) -> Iterator[str]:
    """Every field with its verdict; a reason where it differs."""
    for field in comparison.fields:
        if field.verdict is Verdict.SAME:
            yield f"{'same':10}{field.name}: {field.here or '-'}"
        elif field.verdict is Verdict.UNKNOWN:
            yield f"{'unknown':10}{field.name}: {field.snapshot or field.here or '-'}"
        else:
            yield f"{field.verdict.value:10}{field.name}: {a} {field.snapshot!r}, {b} {field.here!r}: {field.why}"


def show_document(id_: str, names: Sequence[str], manifest: Manifest, comparison: Comparison) -> dict[str, object]:
    """One snapshot for programs."""
    return {
        "id": id_,
        "names": list(names),
        "compile_id": manifest.compile_id,
        "created": manifest.created,
        "tool": manifest.tool,
        "parent": manifest.parent,
        "build_ms": manifest.build_ms,
        "bytes": manifest.size,
        "kernels_in_graph_entries": manifest.kernels,
        "kinds": {kind: {"files": files, "bytes": size} for kind, (files, size) in _kinds(manifest).items()},
        "fits": render.verdict(comparison),
        "fingerprint": [render.field_json(field) for field in comparison.fields],
        "entries": [
            {"path": one.path, "kind": one.kind.value, "size": one.size, "sha256": one.sha256, "exec": one.executable}
            for one in manifest.entries
        ],
    }


def show_lines(
    id_: str, names: Sequence[str], manifest: Manifest, comparison: Comparison, *, entries: bool
) -> Iterator[str]:
    """One snapshot for people."""
    yield f"snapshot   {id_}"
    yield f"names      {', '.join(names) or '-'}"
    yield f"created    {manifest.created} by {manifest.tool}"
    yield f"compile id {manifest.compile_id or '- (a whole directory)'}"
    yield f"parent     {manifest.parent or '-'}"
    took = "" if manifest.build_ms is None else f", {manifest.build_ms / 1000:.1f} s to compile"
    yield f"content    {len(manifest.entries)} entries, {human_bytes(manifest.size)}{took}"
    for kind, (files, size) in _kinds(manifest).items():
        yield f"  {kind:12}{files:6}  {human_bytes(size)}"
    if manifest.kernels:
        yield f"  Triton kernels in graph entries: {manifest.kernels}"
    yield f"fits here  {render.verdict(comparison)}"
    yield from (f"  {line}" for line in field_lines(comparison, "there", "here"))
    if entries:
        yield from (f"{one.size:10}  {one.sha256[:SHORT]}  {one.path}" for one in manifest.entries)


def _kinds(manifest: Manifest) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for entry in manifest.entries:
        files, size = found.get(entry.kind.value, (0, 0))
        found[entry.kind.value] = files + 1, size + entry.size
    return dict(sorted(found.items()))


def diff_document(found: Difference) -> dict[str, object]:
    """Two subjects for programs."""
    return {
        "a": found.a.title,
        "b": found.b.title,
        "status": _status(found.comparison),
        "fields": [_sides(field) for field in found.comparison.fields],
        "kinds": None
        if found.kinds is None
        else {
            one.kind.value: {
                "same": one.same,
                "only_a": list(one.only_a),
                "only_b": list(one.only_b),
                "differing": list(one.differing),
                "in_graph_entries": one.bundled,
            }
            for one in found.kinds
        },
    }


def _sides(field: FieldComparison) -> dict[str, object]:
    return {
        "name": field.name,
        "verdict": field.verdict.value,
        "a": field.snapshot,
        "b": field.here,
        "why": field.why,
    }


def _status(comparison: Comparison) -> str:
    return "fatal" if comparison.fatal else "degrading" if comparison.degrading else "same"


def diff_lines(found: Difference) -> Iterator[str]:
    """Two subjects for people."""
    yield f"A: {found.a.title}"
    yield f"B: {found.b.title}"
    yield from field_lines(found.comparison, "A", "B")
    for one in found.kinds or ():
        yield from _kind_lines(one)


def _kind_lines(one: KindDifference) -> Iterator[str]:
    counts = f"{one.same} same, {len(one.only_a)} only in A, {len(one.only_b)} only in B, {len(one.differing)} differ"
    yield f"{one.kind.value}: {counts}" + (f", {one.bundled} in graph entries" if one.bundled else "")
    for sort, paths in (("only in A", one.only_a), ("only in B", one.only_b), ("differs", one.differing)):
        yield from (f"  {sort}: {path}" for path in paths[:LISTED])
        if len(paths) > LISTED:
            yield f"  {sort}: {len(paths) - LISTED} more (--json lists all)"


def explain_document(found: Explanation) -> dict[str, object]:
    """A run's look-ups for programs."""
    return {
        "cache_dir": str(found.cache_dir),
        "counts": {cache.value: {one.value: found.count(one, cache) for one in Outcome} for cache in Cache},
        "groups": [
            {
                "outcome": group.outcome.value,
                "cause": group.cause.value if group.cause else None,
                "text": group.text,
                "graphs": len(group.lookups),
            }
            for group in found.groups
        ],
        "lookups": [_explained(one) for one in found.lookups],
    }


def _explained(one: Explained) -> dict[str, object]:
    lookup = one.lookup
    return {
        "cache": lookup.cache.value,
        "outcome": lookup.outcome.value,
        "graph": lookup.graph,
        "key": lookup.key,
        "cause": one.cause.value if one.cause else None,
        "reason": lookup.reason,
        "nearest": one.nearest,
        "differences": [asdict(difference) for difference in one.differences],
        "snapshots": list(one.snapshots),
        "saved_ms": lookup.saved_ms,
        "autocast": lookup.autocast,
    }


def explain_lines(found: Explanation) -> Iterator[str]:
    """A run's look-ups for people: the groups of each cache, then what missed, one by one."""
    if not found.lookups:
        yield "no graph was looked up"
    for group in found.groups:
        caches = ", ".join(f"{sum(one.lookup.cache is c for one in group.lookups)} {c.value}" for c in Cache)
        yield f"{group.text}  [{caches}]"
    for one in found.lookups:
        if one.cause is not None:
            nearest = f", nearest {one.nearest[:SHORT]}" if one.nearest else ""
            key = (one.lookup.key or "-")[:SHORT]
            yield f"  graph {one.lookup.graph} {one.lookup.cache.value} {key}: {one.cause.value}{nearest}"


def stats_document(
    cache: CacheStats | None, runs: Sequence[RunStats], grown: Sequence[Growth], covered: Coverage | None
) -> dict[str, object]:
    """Figures for programs."""
    return {
        "cache": asdict(cache) if cache else None,
        "coverage": asdict(covered) if covered else None,
        "runs": [asdict(run) | {"run": str(run.run)} for run in runs],
        "snapshots": [asdict(one) for one in grown],
    }


def stats_lines(
    cache: CacheStats | None, runs: Sequence[RunStats], grown: Sequence[Growth], covered: Coverage | None
) -> Iterator[str]:
    """Figures for people."""
    if cache:
        rows = [(kind, str(one.files), human_bytes(one.bytes)) for kind, one in cache.kinds.items()]
        yield render.table(("KIND", "FILES", "SIZE"), [*rows, ("all", str(cache.files), human_bytes(cache.bytes))])
        graphs = ", ".join(f"{count} {name}" for name, count in cache.graphs.items())
        yield f"graphs: {graphs}; {cache.duplicates} duplicates ({human_bytes(cache.duplicate_bytes)})"
    if covered:
        yield coverage_line(covered)
    for run in runs:
        counts = ", ".join(f"{count} {name}" for name, count in run.outcomes.items())
        yield f"{run.run}: {counts}, {run.saved_seconds:.1f} s of compiling saved"
        told = [f"bypass: {reason} ({count})" for reason, count in run.reasons.items()]
        told += [f"refused: {run.refused}"] if run.refused else []
        told += [f"error: {run.error}"] if run.error else []
        yield from (f"  {line}" for line in told)
    if grown:
        cells = [
            (
                *(one.id[:SHORT], ", ".join(one.names) or "-", one.created[:19], str(one.entries)),
                *(human_bytes(one.bytes), f"+{one.new_entries}", f"+{human_bytes(one.new_bytes)}"),
            )
            for one in grown
        ]
        yield render.table(("ID", "NAME", "CREATED", "ENTRIES", "SIZE", "NEW", "NEW SIZE"), cells)


def coverage_line(covered: Coverage) -> str:
    """``this cache holds 6 of the 214 entries that the last run used (925.0 kB of 353.0 MB)``."""
    sizes = f"{human_bytes(covered.present_bytes)} of {human_bytes(covered.used_bytes)}"
    return f"this cache holds {covered.present} of the {covered.used} entries that the last run used ({sizes})"
