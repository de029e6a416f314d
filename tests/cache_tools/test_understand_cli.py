"""show, diff, explain, stats: the commands as processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cache_tools import records
from cache_tools.fingerprint import INPUTS, KEY_VERSION
from cache_tools.observe import observe
from cache_tools.snapshot import snapshot
from cache_tools.store import open_store
from cache_tools.trace import Cache, Outcome

from . import helpers
from .test_cli import Cli
from .test_explain import components, lookup


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    helpers.make_cache(tmp_path / "cache", triton=True)
    made = Cli(tmp_path)
    made.run("snapshot", "--name", "run")
    return made


def make_run(cli: Cli, name: str = "monday", **told: str) -> Path:
    """A run directory as ``dflash train`` leaves it."""
    run = cli.root / name
    run.mkdir()
    environ = {key: value for key, value in os.environ.items() if key != "ATEN_CPU_CAPABILITY"}
    values = dict(observe(environ=environ).values) | told
    document = {
        "fingerprint": {"key_version": KEY_VERSION, "values": values},
        "restore": {"outcome": "error", "reason": "a blob is damaged"},
    }
    (run / "compile.json").write_text(json.dumps(document))
    records.keep_in_cache(cli.cache, [lookup(key="akey", components=components())])
    wanted = components(inductor_config__max_autotune="True")
    keys = records.RunKeys(
        cache_dir=cli.cache,
        compile_id=None,
        present=records.keys_present(cli.cache),
        lookups=(lookup(key="new", components=wanted), lookup(Outcome.HIT, key="akey", saved_ms=2500)),
        used={"ca/absent.py": 5, helpers.NATIVE: (cli.cache / helpers.NATIVE).stat().st_size},
    )
    records.write_run(run, keys)
    return run


def test_show_tells_everything(cli: Cli) -> None:
    document = cli.json("show", "run")
    assert document["names"] == ["run"]
    assert document["fits"] == "yes"
    assert sum(kind["files"] for kind in document["kinds"].values()) == len(document["entries"]) == 9
    assert [field["name"] for field in document["fingerprint"]] == [one.name for one in INPUTS]
    text = cli.run("show", document["id"][:9], "--entries").stdout
    assert all(part in text for part in (document["id"], helpers.NATIVE, "triton", "fits here  yes", "autocast"))
    (content,) = (line for line in text.splitlines() if line.startswith("content "))
    assert content.endswith("B"), "nobody knows how long it took to compile: nothing after the size"
    refused = cli.run("show", "run", ATEN_CPU_CAPABILITY="default").stdout
    assert "fits here  no: cpu_isa, cpu_isa_flags" in refused
    assert "wrong numbers or SIGBUS" in refused


def test_a_snapshot_beside_its_cache(cli: Cli) -> None:
    same = cli.json("diff", "run", str(cli.cache))
    assert same["status"] == "same"
    changed = [part for of_kind in same["kinds"].values() for what, part in of_kind.items() if what != "same"]
    assert changed
    assert not any(changed)
    graph = next(path for path in helpers.tree(cli.cache) if path.startswith("fxgraph"))
    (cli.cache / graph).unlink()
    extra = helpers.write(cli.cache, "aotautograd/akey/more", b"x")
    data = (cli.cache / helpers.SOURCE_CPP).read_bytes()
    (cli.cache / helpers.SOURCE_CPP).write_bytes(data[::-1])
    found = cli.json("diff", "run", str(cli.cache))["kinds"]
    assert found["fxgraph"]["only_a"] == [graph]
    assert found["aotautograd"]["only_b"] == [extra]
    assert found["source"]["differing"] == [helpers.SOURCE_CPP], "same size, other bytes"
    text = cli.run("diff", "run", str(cli.cache)).stdout
    assert f"  only in A: {graph}" in text
    assert "fxgraph: 0 same, 1 only in A, 0 only in B, 0 differ" in text


def test_group_files_do_not_differ_for_their_paths(cli: Cli) -> None:
    cli.run("restore", "run", "--to", str(cli.root / "elsewhere"))
    found = cli.json("diff", str(cli.cache), str(cli.root / "elsewhere"))
    assert found["kinds"]["triton"] == {"same": 2, "only_a": [], "only_b": [], "differing": [], "in_graph_entries": 0}


def test_fatal_fields_are_exit_4_and_say_why(cli: Cli) -> None:
    done = cli.run("diff", "run", "--env", rc=4, ATEN_CPU_CAPABILITY="default")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("fatal     cpu_isa:"))
    assert "which torch's key leaves out: wrong numbers or SIGBUS" in line
    assert cli.json("diff", "run", "--env")["status"] == "same"
    assert "degrading threads: A " in cli.run("diff", "run", "--env", OMP_NUM_THREADS="77").stdout


def test_runs_are_compared_by_what_they_told(cli: Cli) -> None:
    a, b = make_run(cli, "a", autocast="off", inductor_config="1"), make_run(cli, "b", autocast="cpu bfloat16")
    document = cli.json("diff", str(a), str(b))
    verdicts = {field["name"]: field["verdict"] for field in document["fields"]}
    assert (verdicts["autocast"], verdicts["inductor_config"], verdicts["precision"]) == (
        "degrading",
        "unknown",
        "unknown",
    )
    assert document["kinds"]["native"]["same"] == 1
    assert cli.json("diff", str(a), str(b), "--strict", rc=4)["status"] == "fatal"


def test_the_snapshot_that_a_run_left_was_not_there_when_it_missed(cli: Cli) -> None:
    held = cli.json("show", "run")
    key = next(one["path"].split("/")[-2] for one in held["entries"] if one["kind"] == "aotautograd")
    run = make_run(cli)
    none = {cache: frozenset[str]() for cache in Cache}
    keys = records.RunKeys(
        cache_dir=cli.cache, compile_id=None, present=none, lookups=(lookup(key=key),), used={"ca/absent.py": 5}
    )
    records.write_run(run, keys)
    assert "the cache lost them: snapshot run has them" in cli.run("explain", str(run)).stdout
    (run / "run.json").write_text(json.dumps({"started": "2026-01-01T00:00:00Z"}))
    assert "1 graph missed because nothing was cached" in cli.run("explain", str(run)).stdout
    (run / "run.json").unlink()
    document = json.loads((run / "compile.json").read_text()) | {"snapshot": held["id"]}
    (run / "compile.json").write_text(json.dumps(document))
    assert "1 graph missed because nothing was cached" in cli.run("explain", str(run)).stdout


def test_explain_names_the_option(cli: Cli) -> None:
    run = make_run(cli)
    text = cli.run("explain", str(run)).stdout.splitlines()
    assert text[0].startswith("1 graph missed because inductor config max_autotune differs (cached: False, now: True)")
    assert text[1].startswith("1 graph hit, 2.5 s of compiling saved")
    document = cli.json("explain", str(run))
    assert document["counts"]["aotautograd"] == {"hit": 1, "miss": 1, "bypass": 0}
    assert document["lookups"][0]["nearest"] == "akey"
    assert document["lookups"][0]["differences"] == [
        {"name": "inductor_config[max_autotune]", "cached": "False", "wanted": "True"}
    ]


def test_stats(cli: Cli) -> None:
    helpers.write(cli.cache, f"fxgraph/ab/fabkey/{helpers.b32(b'twin')}", b"twin")
    cli.run("snapshot", "--name", "run")
    run = make_run(cli)
    document = cli.json("stats", str(run))
    assert document["cache"]["kinds"]["fxgraph"]["files"] == 2
    assert (document["cache"]["duplicates"], document["cache"]["graphs"]["fxgraph"]) == (1, 1)
    assert (document["coverage"]["used"], document["coverage"]["present"]) == (2, 1)
    (told,) = document["runs"]
    assert (told["outcomes"], told["error"]) == ({"hit": 1, "miss": 1, "bypass": 0}, "a blob is damaged")
    assert told["saved_seconds"] == 2.5
    before, after = document["snapshots"]
    assert (before["new_entries"], after["new_entries"], after["new_bytes"]) == (9, 1, 4)
    text = cli.run("stats", str(run)).stdout
    assert "this cache holds 1 of the 2 entries that the last run used" in text
    assert "error: a blob is damaged" in text


def test_coverage_by_the_newest_snapshot(cli: Cli) -> None:
    for path in (cli.cache / "fxgraph").rglob("*"):
        if path.is_file():
            path.unlink()
    (cli.cache / "iq" / "ciqkernel.main.so").write_bytes(b"short")
    covered = cli.json("stats")["coverage"]
    assert (covered["used"], covered["present"]) == (9, 7)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "nope"], "names: run"),
        (["diff", "run"], "--env"),
        (["diff", "run", "run", "--env"], "--env"),
        (["diff", "run", "./nowhere"], "is no snapshot, no run directory and no cache directory"),
        (["explain", "/nowhere"], "/nowhere is no directory"),
        (["stats", "/nowhere"], "cache_keys.json is not there"),
        (["explain", "/dev/null"], "/dev/null is no directory"),
        (["stats", "/dev/null"], "cache_keys.json is not there"),
        (["stats", "--cache-dir", "/nowhere"], "/nowhere is not a directory"),
        (["stats", "--store", "/nowhere"], "/nowhere is not a cache store"),
    ],
)
def test_bad_usage_is_exit_2_and_one_line(cli: Cli, arguments: list[str], says: str) -> None:
    done = cli.run(*arguments, rc=2)
    assert says in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("file", "content", "commands"),
    [
        ("cache_keys.json", None, ["explain", "stats"]),
        ("cache_keys.json", "{", ["explain", "diff --env"]),
        ("cache_keys.json", "[]", ["explain", "stats"]),
        ("cache_keys.json", '{"schema": 7}', ["explain"]),
        ("compile.json", None, ["stats"]),
        ("compile.json", "{", ["stats", "diff --env"]),
        ("compile.json", '{"restore": [1], "fingerprint": 5}', ["stats", "diff --env"]),
    ],
)
def test_a_damaged_run_is_one_plain_line(cli: Cli, file: str, content: str | None, commands: list[str]) -> None:
    run = make_run(cli)
    (run / file).unlink()
    if content is None:
        os.mkfifo(run / file)
    else:
        (run / file).write_text(content)
    for command in commands:
        said = cli.run(*command.split(), str(run), rc=2).stderr
        assert said.startswith(f"error: {run / file} ")
        assert said.count("\n") == 1
        assert not [word for word in ("Error", "object", "line 1", "NoneType") if word in said]


def test_pipes_among_traces_and_entries_are_not_waited_for(cli: Cli) -> None:
    trace = cli.root / "trace"
    trace.mkdir()
    os.mkfifo(trace / "dedicated_log_torch_trace_rank_0.log")
    assert "is not a plain file" in cli.run("explain", str(trace), rc=5).stderr
    run = make_run(cli)
    os.mkfifo(cli.cache / "fxgraph/ab/fabkey/a-pipe")
    assert cli.run("explain", str(run)).stdout


def test_stats_of_a_trace_says_who_reads_traces(cli: Cli) -> None:
    (cli.root / "trace").mkdir()
    (cli.root / "trace" / "dedicated_log_torch_trace_x.log").write_text("")
    assert "a trace of torch is for explain" in cli.run("stats", str(cli.root / "trace"), rc=2).stderr
    assert "TORCH_TRACE" in cli.run("explain", str(cli.root), rc=2).stderr


def test_a_run_of_another_version_is_told(cli: Cli) -> None:
    run = make_run(cli)
    (run / "compile.json").write_text("{}")
    assert "holds no fingerprint" in cli.run("diff", str(run), "--env", rc=2).stderr
    document = {"fingerprint": {"key_version": 1, "values": {}}}
    (run / "compile.json").write_text(json.dumps(document))
    assert "fatal     key_version: A '1'" in cli.run("diff", str(run), "--env", rc=4).stdout


def test_a_restore_by_hand_tells_of_autocast(cli: Cli) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "ATEN_CPU_CAPABILITY"}
    for name, autocast in (("amp", "cpu bfloat16"), ("plain", "off")):
        told = observe(environ=environ).with_told({"autocast": autocast})
        snapshot(open_store(cli.store), cli.cache, name=name, fingerprint=told)
    to = str(cli.root / "new")
    assert "note: made under autocast (cpu bfloat16)" in cli.run("restore", "amp", "--to", to).stderr
    assert "autocast" not in cli.run("restore", "plain", "--to", to).stderr


def test_json_of_the_live_check_names_folders_and_notes(cli: Cli) -> None:
    (cli.cache / "fxgraph").chmod(0o777)
    helpers.write(cli.cache, f"aotautograd/akey/{helpers.b32(b'twin')}", b"twin")
    live = cli.json("verify", "--live", str(cli.cache), rc=5)["live"]
    assert [(file["path"], file["folder"]) for file in live["bad"]] == [("fxgraph", True)]
    assert [note["id"] for note in live["notes"]] == ["duplicates"]
    repaired = cli.json("verify", "--live", str(cli.cache), "--repair")["live"]
    assert [(file["path"], file["closed"], file["moved"]) for file in repaired["bad"]] == [("fxgraph", True, False)]
