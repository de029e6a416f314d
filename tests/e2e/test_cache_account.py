"""What a real run tells of its compile cache afterwards, and what the commands make of it."""

from __future__ import annotations

import json
import shutil

import pytest

from cache_tools.fingerprint import TOLD
from tests.e2e.conftest import Lab

pytestmark = pytest.mark.slow


def test_a_run_tells_what_only_torch_knows(lab: Lab, first_run: str) -> None:
    compiled = lab.json(first_run, "compile.json")
    values = compiled["fingerprint"]["values"]
    assert all(values[name] for name in TOLD)
    assert values["autocast"] == "off"
    assert compiled["restore"] == {"outcome": "none", "reason": None}
    shown = json.loads(lab.run("cache", "show", compiled["snapshot"], "--json").stdout)
    snapshot = {field["name"]: field["snapshot"] for field in shown["fingerprint"]}
    assert {name: snapshot[name] for name in TOLD} == {name: values[name] for name in TOLD}
    assert shown["kinds"]["keys"]["files"] == 1
    same = json.loads(lab.run("cache", "diff", lab.path / first_run, compiled["snapshot"], "--json").stdout)
    assert same["status"] == "same"
    assert all(not (kind["only_a"] or kind["only_b"] or kind["differing"]) for kind in same["kinds"].values())


def test_a_cold_run_is_explained(lab: Lab, first_run: str) -> None:
    document = json.loads(lab.run("cache", "explain", lab.path / first_run, "--json").stdout)
    assert document["counts"]["aotautograd"] == {"hit": 0, "miss": 1, "bypass": 0}
    assert document["counts"]["fxgraph"]["miss"] == 2
    stats = json.loads(lab.run("cache", "stats", lab.path / first_run, "--json").stdout)
    assert stats["runs"][0]["outcomes"] == {"hit": 0, "miss": 1, "bypass": 0}
    assert stats["coverage"]["present"] == stats["coverage"]["used"] > 10


def test_a_cache_that_lost_its_graphs_is_told_restored_and_hit(lab: Lab, first_run: str) -> None:
    for folder in ("fxgraph", "aotautograd"):
        shutil.rmtree(lab.path / "inductor" / folder)
    done = lab.train("partial", "--max-steps", 1, steps=24)
    (line,) = (line for line in done.stderr.splitlines() if "entries that the last run used" in line)
    held, used = (int(word) for word in line.split() if word.isdigit())
    assert 0 < held == used - 3
    compiled = lab.json("partial", "compile.json")
    assert (compiled["hits"], compiled["misses"], compiled["restore"]["outcome"]) == (1, 0, "restored")
    assert compiled["saved_seconds"] > 1
    assert "3 graphs hit" in lab.run("cache", "explain", lab.path / "partial").stdout
