"""The commands, as a process: streams, exit codes, documents."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_tools.paths import default_cache_dir

from . import helpers


class Cli:
    """Runs ``python -m cache_tools`` with a store of its own."""

    def __init__(self, root: Path) -> None:
        self.store = root / "store"
        self.cache = root / "cache"
        self.root = root

    def run(self, *arguments: str, rc: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
        env |= {"DFLASH_CACHE_STORE": str(self.store), "TORCHINDUCTOR_CACHE_DIR": str(self.cache), **environ}
        done = subprocess.run(
            [sys.executable, "-m", "cache_tools", *arguments],
            env=env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        assert "Traceback" not in done.stderr or "--debug" in arguments
        assert "\x1b" not in done.stdout + done.stderr, "no colour off a terminal"
        return done

    def json(self, *arguments: str, rc: int = 0, **environ: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run(*arguments, "--json", rc=rc, **environ).stdout)
        assert document.pop("schema") == 1
        return document


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    helpers.make_cache(tmp_path / "cache")
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A store with one snapshot, for commands that change nothing."""
    root = tmp_path_factory.mktemp("ready")
    helpers.make_cache(root / "cache")
    cli = Cli(root)
    cli.run("snapshot", "--name", "run")
    return cli


def test_the_whole_way(cli: Cli) -> None:
    done = cli.run("snapshot", "--name", "run")
    assert "5 entries" in done.stdout
    assert done.stderr == "left out: 1 lock, 1 temp\n"
    assert cli.json("snapshot", "--name", "run")["new"] is False
    listed = cli.json("list")["snapshots"]
    assert [(one["name"], one["entries"], one["fits"]) for one in listed] == [("run", 5, "yes")]
    header, row = cli.run("list").stdout.splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "ENTRIES", "TORCH", "CPU_ISA", "GPU", "CREATED", "TRUST", "FITS"]
    assert row.split()[:2] == ["run", listed[0]["id"][:12]]
    planned = cli.json("restore", "run", "--to", str(cli.root / "new"), "--dry-run")
    assert (planned["status"], planned["plan"]["add"]) == ("planned", 5)
    assert not (cli.root / "new").exists()
    restored = cli.json("restore", listed[0]["id"][:8], "--to", str(cli.root / "new"))
    assert (restored["status"], restored["added"], restored["kept"]) == ("restored", 5, 0)
    assert cli.json("verify")["status"] == "ok"
    assert "all intact" in cli.run("verify", "run").stdout


def test_another_vector_isa_is_exit_4_and_touches_nothing(cli: Cli) -> None:
    cli.run("snapshot", "--name", "run")
    target = cli.root / "new"
    for flag in ((), ("--dry-run",)):
        done = cli.run("restore", "run", "--to", str(target), *flag, rc=4, ATEN_CPU_CAPABILITY="default")
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
        assert "cpu_isa is" in line
        assert "wrong numbers" in line
        assert not target.exists()
    refused = cli.json("restore", "run", "--to", str(target), rc=4, ATEN_CPU_CAPABILITY="default")
    assert refused["status"] == "refused"
    assert "cpu_isa" in [field["name"] for field in refused["differences"]]
    assert "no: cpu_isa" in cli.run("list", ATEN_CPU_CAPABILITY="default").stdout


def test_degrading_differences_are_told_and_restored(cli: Cli) -> None:
    cli.run("snapshot", "--name", "run")
    done = cli.run("restore", "run", "--to", str(cli.root / "new"), OMP_NUM_THREADS="77")
    assert done.stderr.startswith("degrading: threads was ")


def test_damage_is_exit_5_and_every_file_is_named(cli: Cli) -> None:
    cli.run("snapshot", "--name", "run")
    helpers.write(cli.cache, "ab/cmore.main.cpp", b"// more")
    cli.run("snapshot", "--name", "run")
    victims = helpers.packs(cli.store)
    assert len(victims) == 2
    for victim in victims:
        victim.write_bytes(victim.read_bytes()[:-3])
    done = cli.run("verify", rc=5)
    assert all(victim.name in done.stdout for victim in victims)
    problems = [problem["path"] for problem in cli.json("verify", rc=5)["store"]["problems"]]
    assert {f"blobs/{victim.name}" for victim in victims} <= set(problems)
    refused = cli.run("restore", "run", "--to", str(cli.root / "new"), rc=5).stderr
    assert any(victim.name in refused for victim in victims)
    (cli.store / "refs" / "run").write_text("rubbish")
    assert "refs/run" in cli.run("list", rc=5).stderr
    (cli.store / "config.json").write_text("{}")
    assert cli.json("verify", rc=5)["store"]["problems"][0]["path"] == "config.json"


def test_live_check_and_repair(cli: Cli) -> None:
    assert cli.json("verify", "--live", str(cli.cache)) == {
        "status": "ok",
        "store": None,
        "live": {"directory": str(cli.cache), "bad": [], "quarantine": None, "notes": []},
    }
    (cli.cache / helpers.NATIVE).write_bytes(b"")
    assert f"bad: {helpers.NATIVE}: empty" in cli.run("verify", "--live", str(cli.cache), rc=5).stdout
    repaired = cli.json("verify", "--live", str(cli.cache), "--repair")
    assert repaired["live"]["bad"][0]["moved"] is True
    assert (Path(repaired["live"]["quarantine"]) / helpers.NATIVE).exists()
    assert cli.json("verify", "--live", str(cli.cache))["status"] == "ok"


def test_prune_plans_then_removes_and_pins_hold(cli: Cli) -> None:
    ids = []
    for number in range(3):
        helpers.write(cli.cache, "ab/cnew.main.cpp", b"// %d" % number)
        ids.append(cli.json("snapshot", "--name", f"run{number}")["id"])
    assert "pinned" in cli.run("pin", "run0").stdout
    planned = cli.json("prune", "--keep-last", "1", "--dry-run")
    assert (planned["status"], planned["removed"]) == ("planned", 1)
    keep = {one["id"]: one["keep"] for one in planned["snapshots"]}
    assert keep == {ids[0]: ["pinned"], ids[1]: [], ids[2]: ["among the last"]}
    assert len(cli.json("list")["snapshots"]) == 3
    done = cli.json("prune", "--keep-last", "1")
    assert (done["status"], done["removed"]) == ("pruned", 1)
    assert [one["name"] for one in cli.json("list")["snapshots"]] == ["run2", "run0"]
    assert cli.json("unpin", "run0") == {"id": ids[0], "pinned": False}
    lines = cli.run("prune", "--max-size", "0").stdout.splitlines()
    assert lines[-1].startswith("removed 2 snapshots, ")
    assert cli.json("verify")["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["snapshot", "--name", "a/b"], "cannot name a snapshot"),
        (["snapshot", "/nowhere", "--name", "x"], "/nowhere is not a directory"),
        (["snapshot"], "--name"),
        (["restore", "nope"], "names: run"),
        (["restore", "run", "--merge", "--replace"], "exclude each other"),
        (["restore", "run", "--to", ""], "an empty path"),
        (["restore", "run", "--to="], "an empty path"),
        (["restore", "run", "--to", "/"], "root of the file system"),
        (["snapshot", "--name", "x", ""], "an empty path"),
        (["list", "--store", ""], "an empty path"),
        (["show", "run", "--store", ""], "an empty path"),
        (["stats", "--cache-dir", ""], "an empty path"),
        (["sign", "run", "--key", ""], "an empty path"),
        (["keygen", "--out", ""], "an empty path"),
        (["explain", ""], "an empty path"),
        (["stats", ""], "an empty path"),
        (["diff", "", "--env"], "an empty path"),
        (["diff", "run", ""], "an empty path"),
        (["verify", "nope"], "names: run"),
        (["verify", "--repair"], "--repair needs --live"),
        (["verify", "--live", "/nowhere"], "/nowhere is not a directory"),
        (["list", "--store", "/nowhere"], "dflash cache snapshot --store /nowhere --name NAME"),
        (["prune", "--keep-within", "soon"], "is not a duration"),
        (["prune", "--max-size", "big"], "is not a size"),
        (["prune", "--max-size", ""], "is not a size"),
        (["prune", "--keep-within", ""], "is not a duration"),
        (["prune", "--keep-last", "-1"], "keep-last -1 is negative"),
        (["pin", "nope"], "names: run"),
        (["polish"], "polish"),
    ],
)
def test_bad_usage_is_exit_2_and_one_line(ready: Cli, arguments: list[str], says: str) -> None:
    done = ready.run(*arguments, rc=2)
    assert says in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_a_replacement_says_how_much_goes_and_deletes_nothing_foreign(cli: Cli) -> None:
    cli.run("snapshot", "--name", "run")
    planned = cli.json("restore", "run", "--replace", "--dry-run")
    assert planned["removed"] == len(helpers.tree(cli.cache)) == 7
    assert "7 files there go" in cli.run("restore", "run", "--replace", "--dry-run").stdout
    (cli.cache / "thesis.txt").write_text("years of work")
    refused = cli.run("restore", "run", "--replace", rc=2).stderr
    assert "holds thesis.txt" in refused
    assert refused.count("\n") == 1
    assert (cli.cache / "thesis.txt").exists()


def test_what_is_only_named_by_an_empty_variable_is_refused(cli: Cli) -> None:
    """torch makes that directory and fails; we would take or fill the current one."""
    for command in ("snapshot --name run", "restore run", "stats"):
        cli.run("snapshot", "--name", "run", str(cli.cache))
        said = cli.run(*command.split(), rc=2, TORCHINDUCTOR_CACHE_DIR="").stderr
        assert said.startswith("error: TORCHINDUCTOR_CACHE_DIR is set and empty")
        assert said.count("\n") == 1


def test_store_and_cache_are_apart(cli: Cli) -> None:
    """A store in the cache would be taken into its own snapshots, and verify would call a cache in a store rubbish."""
    inside = cli.cache / "store"
    assert f"lies in the cache {cli.cache}" in cli.run("snapshot", "--name", "run", "--store", str(inside), rc=2).stderr
    assert not inside.exists()
    cli.run("snapshot", "--name", "run")
    nested = cli.store / "cache"
    helpers.make_cache(nested)
    assert f"contains the cache {nested}" in cli.run("snapshot", "--name", "run", str(nested), rc=2).stderr
    nested.rename(cli.root / "nested")
    empty = cli.root / "empty"
    empty.mkdir()
    assert "is the cache" in cli.run("snapshot", "--name", "run", str(empty), "--store", str(empty), rc=2).stderr
    assert list(empty.iterdir()) == []


def test_a_directory_of_something_else_is_not_taken_for_a_cache(cli: Cli) -> None:
    cli.run("snapshot", "--name", "run")
    wrong = cli.root / "thesis"
    helpers.write(wrong, "src/chapter.py", b"years of work")
    for other, rc in ((wrong, 5), (cli.store, 0)):
        said = cli.run("snapshot", "--name", "wrong", str(other), "--store", str(cli.root / "other"), rc=2).stderr
        assert f"{other} holds nothing that torch.compile writes" in said
        assert [one["id"] for one in cli.json("verify", "--live", str(other), rc=rc)["live"]["notes"]] == ["foreign"]
        refused = cli.run("verify", "--live", str(other), "--repair", rc=2)
        assert f"{other} holds nothing that torch.compile writes" in refused.stderr
        assert (refused.stdout, refused.stderr.count("\n")) == ("", 1)
    assert (wrong / "src" / "chapter.py").read_text() == "years of work"


def test_names_of_files_forge_no_lines(cli: Cli) -> None:
    helpers.write(cli.cache, "ab/x\nall intact\x1b[31m", b"")
    done = cli.run("verify", "--live", str(cli.cache), rc=5)
    assert "bad: ab/x\\nall intact\\x1b[31m: empty" in done.stdout
    assert len(done.stdout.splitlines()) == 2


def test_no_store_yet_is_an_empty_list(cli: Cli) -> None:
    done = cli.run("list")
    assert done.stdout == ""
    assert "no snapshots" in done.stderr
    assert cli.json("list")["snapshots"] == []


def test_debug_shows_the_traceback(ready: Cli) -> None:
    done = ready.run("restore", "nope", "--debug", rc=2)
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_a_reader_that_went_away_is_no_failure_of_ours(ready: Cli) -> None:
    command = f"{sys.executable} -m cache_tools list --store {ready.store} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout in ("141\n", "0\n")  # 0: written before the reader went
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", ["--help", "restore --help"])
def test_help_that_nobody_reads_is_no_failure_of_ours(arguments: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cache_tools", *arguments.split()], stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "closed", "rc"),
    [
        ("list", ">&-", 0),
        ("list --json", ">&-", 0),
        ("--help", ">&-", 0),
        ("show nope", ">&-", 2),
        ("snapshot --name again", "<&- >&- 2>&-", 0),
        ("verify", "2>&-", 0),
        ("snapshot --name again", "2>/dev/full", 0),
        ("show nope", "2>/dev/full", 2),
    ],
)
def test_closed_streams_are_no_failure_of_ours(cli: Cli, arguments: str, closed: str, rc: int) -> None:
    cli.run("snapshot", "--name", "run")
    command = f"{sys.executable} -m cache_tools {arguments} {closed}"
    own = {"DFLASH_CACHE_STORE": str(cli.store), "TORCHINDUCTOR_CACHE_DIR": str(cli.cache)}
    done = subprocess.run(["bash", "-c", command], env=os.environ | own, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "bug" in done.stderr) == (rc, False), done.stderr
    assert done.stdout == "" or closed.startswith("2>")
    assert cli.json("verify")["status"] == "ok"


def test_help_repeats_the_exit_codes(ready: Cli) -> None:
    said = " ".join(ready.run("--help").stdout.split())
    assert all(f"{code} " in said for code in (0, 1, 2, 3, 4, 5, 6, 130, 141))


def test_importing_the_commands_costs_only_typer() -> None:
    code = (
        "import sys, cache_tools, cache_tools.cli; "
        "heavy = {'torch', 'zstandard', 'filelock', 'rich', 'platformdirs'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_public_names_exist_and_torch_stays_away() -> None:
    code = (
        "import sys, cache_tools; [getattr(cache_tools, name) for name in cache_tools._HOMES]; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_default_cache_is_the_one_that_torch_uses(tmp_path: Path) -> None:
    # torch's own module needs nothing but torch._environment; run its text without importing torch.
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "_inductor" / "runtime" / "cache_dir_utils.py"
    text = source.read_text().replace("from torch._environment import is_fbcode", "is_fbcode = lambda: False")
    namespace: dict[str, Any] = {}
    exec(compile(text, str(source), "exec"), namespace)
    assert str(default_cache_dir({})) == namespace["default_cache_dir"]()
    assert default_cache_dir({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}) == tmp_path


def test_a_snapshot_names_the_directory_it_is_of(cli: Cli) -> None:
    assert cli.run("snapshot", "--name", "run").stdout.endswith(f", from {cli.cache}\n")


@pytest.mark.parametrize("file", ["train.py", "uv.lock", "ui/main.py", "ui/lib.so", "cache/notes.txt", "dynamo/a.py"])
def test_a_directory_of_other_files_is_no_place_to_merge_into(cli: Cli, file: str) -> None:
    cli.run("snapshot", "--name", "run")
    target = cli.root / "sources"
    helpers.write(target, file, b"import torch\n")
    before = helpers.tree(target)
    refused = cli.run("restore", "run", "--to", str(target), rc=2)
    assert f"{target} holds {file} and nothing of a compile cache" in refused.stderr
    assert helpers.tree(target) == before
    cli.run("restore", "run", TORCHINDUCTOR_CACHE_DIR=str(target))  # torch's own directory, with a stray file in it
    cli.run("restore", "run", "--to", str(target))
    assert helpers.tree(target).items() > before.items()
    (cli.root / "empty").mkdir()
    cli.run("restore", "run", "--to", str(cli.root / "empty"))
