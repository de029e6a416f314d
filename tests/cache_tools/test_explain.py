"""Causes, the nearest entry and the words for it, on look-ups made up for the purpose."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cache_tools import records, words
from cache_tools.explain import Cached, Cause, Explanation, explain_lookups, explain_run
from cache_tools.stats import distinct, run_stats, saved_seconds
from cache_tools.trace import Cache, Component, Lookup, Outcome, parse_component, read_trace
from envguard.errors import UsageError

from . import helpers

SETTINGS = {"inductor_config[max_autotune]": "False", "torch_version": "bytes", "cache_key_tag": ""}


def components(**changes: str) -> dict[str, Component]:
    values = {"gm": "graph()", "example_inputs[0]": "f32 [8]", "example_inputs[1]": "f32 [8]", **SETTINGS}
    values |= {name.replace("__", "[") + ("]" if "__" in name else ""): value for name, value in changes.items()}
    return {name: Component(helpers.b32(value.encode())[:16], value) for name, value in values.items()}


def lookup(outcome: Outcome = Outcome.MISS, *, key: str | None = "anew", **fields: object) -> Lookup:
    made = Lookup(
        cache=Cache.AOT, outcome=outcome, key=key, graph="0/0", components=components(), reason=None, saved_ms=0
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def explained(
    *lookups: Lookup, snapshots: dict[str, tuple[str, ...]] | None = None, **cached: dict[str, Component]
) -> Explanation:
    present = {Cache.AOT: frozenset(cached), Cache.FX: frozenset[str]()}
    known = {(Cache.AOT, key): parts for key, parts in cached.items() if parts}
    state = Cached(present=present, components=known, in_snapshots=snapshots or {})
    return explain_lookups(lookups, state, cache_dir=Path("cache"))


def test_six_graphs_and_one_reason() -> None:
    cached = {f"a{number}": components(gm=f"graph {number}") for number in range(6)}
    wanted = [
        lookup(key=f"n{number}", components=components(gm=f"graph {number}", inductor_config__max_autotune="True"))
        for number in range(6)
    ]
    found = explained(*wanted, **cached)
    assert [group.text for group in found.groups] == [
        "6 graphs missed because inductor config max_autotune differs (cached: False, now: True)"
    ]
    assert [one.nearest for one in found.lookups] == list(cached), "each beside its own graph, not beside the first"


def test_the_same_graph_under_many_other_settings_is_nearer_than_another_graph() -> None:
    other = components(cache_key_tag="x", torch_version="new", inductor_config__max_autotune="True")
    found = explained(lookup(), other_graph=components(gm="other()"), same_graph=other)
    assert found.lookups[0].nearest == "same_graph"


def test_a_changed_model_is_told_without_its_text() -> None:
    found = explained(lookup(components=components(gm="other()", example_inputs__0="f32 [9]")), old=components())
    assert [difference.name for difference in found.lookups[0].differences] == ["example_inputs[0]", "gm"]
    text = found.groups[0].text
    assert "shape, stride, dtype or device of an input (input 0) differs (cached: f32 [8], now: f32 [9])" in text
    assert "the graph itself" in text
    assert "other()" not in text


@pytest.mark.parametrize(
    ("asked", "cause", "says"),
    [
        (lookup(key="old", reason="guard_miss"), Cause.SHAPES, "other dynamic shapes"),
        (lookup(key="old"), Cause.UNUSABLE, "could not use their entries"),
        (lookup(key="lost"), Cause.LOST, "snapshot monday has them, restore it"),
        (lookup(components={}), Cause.UNRECORDED, "was not recorded"),
        (lookup(Outcome.BYPASS, key=None, reason="frozen"), Cause.BYPASS, "1 graph bypassed the cache: frozen"),
        (lookup(Outcome.HIT, saved_ms=1500), None, "1 graph hit, 1.5 s of compiling saved"),
        (lookup(components=components()), Cause.DIFFERS, "something that torch does not tell"),
    ],
)
def test_causes(asked: Lookup, cause: Cause | None, says: str) -> None:
    found = explained(asked, snapshots={"lost": ("monday",)}, old=components())
    assert [one.cause for one in found.lookups] == [cause]
    assert says in found.groups[0].text


def metadata(shape: str, hashed_as: str) -> Component:
    text = f"TensorMetadata(dtype=torch.float32, shape=torch.Size({shape}), stride=(8, 1), storage_bytes=None)"
    return Component(helpers.b32(f"{text} {hashed_as}".encode())[:16], text)


def test_of_an_input_only_what_differs_is_shown() -> None:
    cached = components() | {"example_inputs[0]": metadata("[4, 8]", "torch._utils")}
    wanted = components() | {"example_inputs[0]": metadata("[5, 8]", "torch._utils")}
    text = explained(lookup(components=wanted), old=cached).groups[0].text
    assert text.endswith("(input 0) differs (cached: shape=torch.Size([4, 8]), now: shape=torch.Size([5, 8]))")


def test_equal_inputs_of_another_hash_are_the_order_of_imports() -> None:
    cached = components() | {"example_inputs[0]": metadata("[4, 8]", "torch._utils")}
    wanted = components() | {"example_inputs[0]": metadata("[4, 8]", "__mp_main__")}
    text = explained(lookup(components=wanted), old=cached).groups[0].text
    assert "imports modules in another order" in text


def test_functorch_options_are_named_one_by_one() -> None:
    cached = components() | components(autograd_config="pickle 1", functorch_config__donated_buffer="True")
    wanted = components() | components(autograd_config="pickle 2", functorch_config__donated_buffer="False")
    found = explained(lookup(components=wanted), old=cached)
    assert "because functorch config donated_buffer differs (cached: True, now: False)" in found.groups[0].text


def test_every_component_has_words() -> None:
    assert words.describe("fx_kwargs[is_backward]") == "the compile option is_backward"
    assert words.describe("unheard_of") == "unheard_of"
    many = [(f"inductor_config[{name}]", "1", "2") for name in "abcde"]
    assert words.sentence(many).endswith(", and 2 more components")


def test_saved_seconds_count_a_graph_once() -> None:
    hit = lookup(Outcome.HIT, saved_ms=3000)
    below = dataclasses.replace(hit, cache=Cache.FX, key="f", saved_ms=2000)
    alone = dataclasses.replace(below, graph="1/0", key="g")
    assert saved_seconds((hit,)) == 3
    assert saved_seconds((hit, below)) == 2, "torch's figure for the whole may count the backward twice"
    assert saved_seconds((hit, below, alone)) == 4
    assert len(distinct((lookup(), lookup(), below), Cache.AOT)) == 1, "torch asks twice for some"


def run_keys(cache: Path, *lookups: Lookup) -> records.RunKeys:
    return records.RunKeys(
        cache_dir=cache, compile_id="id", present=records.keys_present(cache), lookups=lookups, used={"a/b": 3}
    )


def test_a_run_is_written_and_read_back(tmp_path: Path) -> None:
    helpers.make_cache(tmp_path / "cache")
    keys = run_keys(tmp_path / "cache", lookup(), lookup(Outcome.BYPASS, key=None, reason="why", components={}))
    records.write_run(tmp_path, keys)
    assert records.read_run(tmp_path) == keys
    assert keys.present == {Cache.AOT: frozenset({"akey"}), Cache.FX: frozenset({"fabkey"})}
    (tmp_path / "compile.json").write_text(json.dumps({"restore": {"outcome": "refused", "reason": "cpu_isa"}}))
    stats = run_stats(tmp_path)
    assert (stats.outcomes, stats.refused, stats.error) == ({"hit": 0, "miss": 1, "bypass": 1}, "cpu_isa", None)
    assert stats.reasons == {"why": 1}
    assert explain_run(tmp_path).groups[0].text == (
        "1 graph missed because no cached entry has their keys (what those keys were made of was not recorded)"
    )


@pytest.mark.parametrize("damage", ["", "{}", '{"schema": 2}', "[1]", '{"schema": 1, "components": [[1]]}', "[" * 9999])
def test_a_damaged_run_file_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    (tmp_path / records.FILE).write_text(damage)
    with pytest.raises(UsageError, match="run again to write it"):
        records.read_run(tmp_path)


def test_the_cache_learns_each_key_once_and_shared_options_are_stored_once(tmp_path: Path) -> None:
    first, second = lookup(key="one"), lookup(key="two", components=components(gm="other"))
    path = records.keep_in_cache(tmp_path, [first, second])
    assert path
    assert records.keep_in_cache(tmp_path, [second]) is None
    assert (tmp_path / path).read_text().count("max_autotune") == 1
    records.keep_in_cache(tmp_path, [lookup(key="three")])
    assert len(records.read_cache(tmp_path)) == 3
    assert records.files_about(tmp_path, ["one"]) == {path}
    (tmp_path / path).write_text("rubbish")
    assert len(records.read_cache(tmp_path)) == 1


def test_a_line_of_torch() -> None:
    digest = "a" * 51
    assert parse_component(f"[{digest}] inductor_config[x]: {{'a': 1}}") == (
        "inductor_config[x]",
        Component("a" * 16, "{'a': 1}"),
    )
    assert parse_component(f"[{digest}] gm: first\n  second") == ("gm", Component("a" * 16, "first second"))
    assert parse_component("[short] gm: x") is None


def test_a_trace_that_ends_in_the_middle(tmp_path: Path) -> None:
    head = (
        'V1129 19:43:28.557000 27667 torch/_inductor/compile_fx.py:1120] {"artifact": {"name": "%s"}, "frame_id": 0}\n'
    )
    whole = '\t{"key": "fkey", "cache_state": "miss",\n\t"components": []}\n'
    text = head % "fx_graph_cache_miss" + whole + head % "other" + "\tx\n" + head % "aotautograd_cache_hit" + '\t{"ke'
    (tmp_path / "dedicated_log_torch_trace_x.log").write_text(text)
    assert [(one.cache, one.outcome, one.key) for one in read_trace(tmp_path)] == [
        (Cache.FX, Outcome.MISS, "fkey"),
        (Cache.AOT, Outcome.HIT, None),
    ]
    with pytest.raises(UsageError, match="TORCH_TRACE="):
        read_trace(tmp_path / "absent")
