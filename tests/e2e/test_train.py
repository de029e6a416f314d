"""``dflash train`` as a user runs it: to the end, killed and resumed, interrupted, refused, from a restored cache."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from tests.e2e.conftest import DFLASH, ROOT, Lab

pytestmark = pytest.mark.slow

EXACT = ("step", "loss", "lr", "grad_norm")


def test_a_run_leaves_everything_behind(lab: Lab, first_run: str) -> None:
    run = lab.path / first_run
    record = lab.json(first_run, "run.json")
    assert (record["status"], record["exit"]) == ("finished", 0)
    assert [line["step"] for line in lab.metrics(first_run)] == list(range(1, 25))
    assert lab.metrics(first_run)[-1]["loss"] < lab.metrics(first_run)[0]["loss"]
    assert all(1 <= line["accepted_length"] <= 8 for line in lab.metrics(first_run))
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step_00000020", "step_00000024"}
    assert lab.json(first_run, "env.json")["env_id"] == record["env_id"]
    assert "step 24/24" in (run / "log.txt").read_text()
    compiled = lab.json(first_run, "compile.json")
    assert (compiled["graphs"], compiled["hits"], compiled["misses"]) == (1, 0, 1)
    assert compiled["native_builds"] > 0
    assert compiled["snapshot"]


def test_a_second_run_compiles_nothing_and_gives_the_same_losses(lab: Lab, first_run: str) -> None:
    done = lab.train("second", "--max-steps", 6, steps=24)
    compiled = lab.json("second", "compile.json")
    assert (compiled["graphs"], compiled["hits"], compiled["misses"]) == (1, 1, 0)
    assert compiled["native_builds"] == 0
    assert compiled["snapshot"] == lab.json(first_run, "compile.json")["snapshot"]
    assert "1 hits, 0 misses" in done.stderr
    assert "(cold was " in done.stderr
    assert exact(lab, "second") == exact(lab, first_run)[:6]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same path", "another path"])
def test_a_deleted_cache_is_restored_by_hand_then_nothing_is_compiled(
    lab: Lab, first_run: str, elsewhere: bool, tmp_path: Path
) -> None:
    cache = tmp_path / "moved-cache" if elsewhere else lab.path / "inductor"
    shutil.rmtree(lab.path / "inductor")
    snapshot = lab.json(first_run, "compile.json")["snapshot"]
    lab.run("cache", "restore", snapshot[:12], "--to", cache)
    # Nothing but the restored directory may help: the run neither restores nor snapshots by itself.
    name = f"restored-{elsewhere}"
    lab.train(name, "--set", "compile.snapshot=false", "--max-steps", 2, steps=24, TORCHINDUCTOR_CACHE_DIR=str(cache))
    compiled = lab.json(name, "compile.json")
    assert (compiled["hits"], compiled["misses"], compiled["native_builds"]) == (1, 0, 0)
    assert exact(lab, name) == exact(lab, first_run)[:2]


def test_five_kills_at_random_moments_change_nothing(lab: Lab, first_run: str) -> None:
    seed = time.time_ns()
    dice = random.Random(seed)
    config = lab.config("killed", steps=24)
    arguments = ("train", config, "--set", f"run.dir={lab.path / 'killed'}", "--resume")
    kills = 0
    while kills < 5:
        process = lab.start(*arguments)
        time.sleep(dice.uniform(0.5, 17.0))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if process.returncode == 0:  # it finished before its moment came: begin again, so that five kills happen
            shutil.rmtree(lab.path / "killed")
        else:
            assert process.returncode == -signal.SIGKILL, f"seed {seed}"
    lab.run(*arguments)
    assert exact(lab, "killed") == exact(lab, first_run), f"seed {seed}"
    assert lab.json("killed", "run.json")["status"] == "finished"


def test_a_first_checkpoint_that_could_not_be_written_is_no_dead_end(lab: Lab, first_run: str) -> None:
    """The metrics tell of its step already, as they do after a kill between the two."""
    (lab.path / "unsaved").mkdir()
    (lab.path / "unsaved" / "checkpoints").write_text("in the way")
    refused = lab.train("unsaved", steps=24, expect=1)
    assert f"{lab.path / 'unsaved' / 'checkpoints'}: file exists" in refused.stderr
    assert [line["step"] for line in lab.metrics("unsaved")] == [1, 2, 3, 4]
    (lab.path / "unsaved" / "checkpoints").unlink()
    lab.train("unsaved", "--resume", "--max-steps", 5, steps=24)
    assert exact(lab, "unsaved") == exact(lab, first_run)[:5]


def wait_for(process: subprocess.Popen[str], file: Path, part: str, *, times: int = 1) -> None:
    """Until ``file`` holds ``part`` so many times."""
    while not (file.exists() and file.read_text().count(part) >= times):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_ctrl_c_saves_and_resume_goes_on(lab: Lab, first_run: str) -> None:
    config = lab.config("interrupted", steps=24)
    arguments = ("train", config, "--set", f"run.dir={lab.path / 'interrupted'}")
    process = lab.start(*arguments)
    wait_for(process, lab.path / "interrupted" / "metrics.jsonl", "\n", times=2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # a launcher forwards what the process group got as well
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert lab.json("interrupted", "run.json")["status"] == "interrupted"
    done = len(lab.metrics("interrupted"))
    assert (lab.path / "interrupted" / "checkpoints" / f"step_{done:08d}").is_dir()
    lab.run(*arguments, "--resume")
    assert exact(lab, "interrupted") == exact(lab, first_run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_signal_is_lost_in_a_compile(lab: Lab, first_run: str, number: signal.Signals, tmp_path: Path) -> None:
    """Inductor takes what a handler raises for a failed compile; the run would go on, or be a bug of dflash."""
    name = f"compiling-{number.name}"
    arguments = ("train", lab.config(name, steps=24), "--set", f"run.dir={lab.path / name}", "--set")
    process = lab.start(*arguments, "compile.snapshot=false", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cold"))
    wait_for(process, lab.path / name / "log.txt", "data: ")
    while not list((tmp_path / "cold").rglob("*.cpp")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    record = lab.json(name, "run.json")
    assert (record["status"], record["exit"]) == ("interrupted", 130)
    assert record["reason"] == f"{number.name} before training began; start again with --resume"
    assert lab.metrics(name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_run_that_nobody_hears_any_more_trains_and_saves(lab: Lab, first_run: str, number: signal.Signals) -> None:
    """`dflash train … 2>&1 | tee log`, where Ctrl-C ends tee, too; and a connection that is gone."""
    name = f"unheard-{number.name}"
    process = lab.start("train", lab.config(name, steps=24), "--set", f"run.dir={lab.path / name}")
    wait_for(process, lab.path / name / "metrics.jsonl", "\n", times=2)
    assert process.stderr
    process.stderr.close()
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    assert lab.json(name, "run.json")["status"] == "interrupted"
    done = len(lab.metrics(name))
    assert (lab.path / name / "checkpoints" / f"step_{done:08d}").is_dir()


def test_a_resume_past_its_last_step_changes_nothing(lab: Lab, first_run: str) -> None:
    shutil.copytree(lab.path / first_run, lab.path / "past")
    before = {path: path.read_bytes() for path in (lab.path / "past").rglob("*") if path.is_file()}
    done = lab.train("past", "--resume", "--max-steps", 5, "--set", "run.log_every=3", steps=24, expect=2)
    assert "at step 24 already, past the last step asked for, 5; raise --max-steps" in done.stderr
    told = {lab.path / "past" / name for name in ("log.txt", "env.json", "preflight.json")}
    assert {path: path.read_bytes() for path in before if path not in told} == {
        path: data for path, data in before.items() if path not in told
    }


def test_a_resume_takes_the_same_data_from_elsewhere_and_no_other(lab: Lab, first_run: str, tmp_path: Path) -> None:
    shutil.copytree(lab.path / first_run, lab.path / "moved")
    shutil.copytree(lab.path / "prepared", tmp_path / "prepared")
    resume = ("--resume", "--set", f"data.path={tmp_path / 'prepared'}")
    lab.train("moved", *resume, steps=24)
    lines = (lab.path / "responses.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "fewer.jsonl").write_text("".join(lines[:6]))
    shutil.rmtree(tmp_path / "prepared")
    lab.run("data", "prepare", tmp_path / "fewer.jsonl", tmp_path / "prepared")
    done = lab.train("moved", *resume, steps=24, expect=2)
    assert "made with other data than" in done.stderr


def test_a_used_directory_needs_resume(lab: Lab, first_run: str) -> None:
    before = (lab.path / first_run / "metrics.jsonl").read_bytes()
    done = lab.train(first_run, steps=24, expect=2)
    assert "holds a run already; use --resume" in done.stderr
    assert (lab.path / first_run / "metrics.jsonl").read_bytes() == before
    assert lab.json(first_run, "run.json")["status"] == "finished"


def test_resume_with_another_setting_is_refused(lab: Lab, first_run: str) -> None:
    shutil.copytree(lab.path / first_run, lab.path / "changed")
    done = lab.train("changed", "--resume", "--set", "optim.lr=1e-4", steps=24, expect=2)
    assert "optim.lr (was 0.003, is 0.0001)" in done.stderr


def test_a_damaged_checkpoint_stops_a_resume(lab: Lab, first_run: str) -> None:
    shutil.copytree(lab.path / first_run, lab.path / "damaged")
    state = lab.path / "damaged" / "checkpoints" / "step_00000024" / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    done = lab.train("damaged", "--resume", steps=24, expect=2)
    assert f"{state.parent}: damaged checkpoint: the sha256 of state.safetensors differs" in done.stderr
    assert "delete it to go on from step_00000020" in done.stderr
    assert lab.json("damaged", "run.json") == lab.json(first_run, "run.json")


def test_a_loss_that_is_not_finite_stops_before_the_optimizer(lab: Lab, first_run: str) -> None:
    done = lab.train("nan", "--set", "optim.lr=1e30", steps=24, expect=1)
    assert "stopped before the optimizer step" in done.stderr
    assert "rows (" in done.stderr
    assert "Traceback" not in done.stderr
    record = lab.json("nan", "run.json")
    assert (record["status"], record["exit"]) == ("failed", 1)


def test_online_features_give_the_same_losses(lab: Lab, first_run: str) -> None:
    lab.train("online", "--set", 'target.features="online"', "--max-steps", 2, steps=24)
    assert exact(lab, "online") == exact(lab, first_run)[:2]


def test_evaluate_is_lossless_and_export_is_complete(lab: Lab, first_run: str) -> None:
    prompts = (ROOT / "examples" / "data" / "heldout_prompts.jsonl").read_text().split("\n")[:2]
    (lab.path / "two.jsonl").write_text("\n".join(prompts) + "\n")
    done = lab.run(
        "evaluate", lab.path / first_run, "--prompts", lab.path / "two.jsonl", "--max-new-tokens", 24, "--json"
    )
    result = json.loads(done.stdout)
    assert (result["prompts"], result["identical"]) == (2, 2)
    assert 1.0 <= result["accepted_length"] <= 8.0
    lab.run("export", lab.path / first_run, lab.path / "exported")
    assert {path.name for path in (lab.path / "exported").iterdir()} == {"config.json", "model.safetensors"}


def test_a_drifted_environment_is_refused_unless_a_reason_is_given(lab: Lab, first_run: str, tmp_path: Path) -> None:
    """The project's own policy with numpy forbidden: torch needs it, so it is there."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(ROOT / "uv.lock", project)
    policy = (ROOT / "envguard.toml").read_text().replace('"sglang*"', '"numpy", "sglang*"')
    (project / "envguard.toml").write_text(policy)
    for source in tomllib.loads(policy)["source"]:
        (project / source).mkdir()
    config = lab.config("drifted", steps=1)
    arguments = ["train", config, "--set", f"run.dir={lab.path / 'drifted'}"]
    refused = elsewhere(lab, project, arguments)
    assert refused.returncode == 1
    assert "PKG004" in refused.stderr
    assert "numpy" in refused.stderr
    assert lab.json("drifted", "run.json")["status"] == "failed"
    allowed = elsewhere(lab, project, [*arguments, "--resume", "--allow-drift", "a test"])
    assert allowed.returncode == 0, allowed.stderr
    assert lab.json("drifted", "run.json")["allowed_drift"]["reason"] == "a test"


def elsewhere(lab: Lab, cwd: Path, arguments: list[object]) -> subprocess.CompletedProcess[str]:
    """``dflash`` in another project's directory."""
    return subprocess.run(
        [DFLASH, *map(str, arguments)], cwd=cwd, env=lab.environ, capture_output=True, text=True, timeout=300
    )


def test_dry_run_tells_and_touches_nothing(lab: Lab) -> None:
    done = lab.train("dry", "--dry-run")
    for part in ("[optim]", "guard: pass", "store: ", "graphs to compile: 1", "disk needed:"):
        assert part in done.stdout
    assert not (lab.path / "dry").exists()
    old = lab.path / "old-store"
    old.mkdir()
    (old / "config.json").write_text('{"format":1}')
    refused = lab.train("dry", "--dry-run", "--set", f"compile.store={old}", expect=5)
    assert "disk needed:" in refused.stdout
    assert f"error: {old / 'config.json'} tells of format 1" in refused.stderr


def test_a_dry_run_converts_nothing_and_tells_the_same(lab: Lab, tmp_path: Path) -> None:
    known = lab.train("dry", "--dry-run").stdout
    fresh = lab.train("dry", "--dry-run", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "convert" not in fresh.stderr
    assert not (tmp_path / "cache" / "dflash").exists()
    told = f", 513 MiB for the converted target, in {tmp_path / 'cache' / 'dflash' / 'targets'}"
    lines = [set(text.splitlines()) for text in (known, fresh.stdout.replace(told, ""))]
    assert told in fresh.stdout
    assert all(line.startswith("disk: ") for line in lines[0] ^ lines[1]), "free space varies"


def exact(lab: Lab, name: str) -> list[str]:
    """The deterministic fields of each step as text."""
    return [json.dumps({key: line[key] for key in EXACT}) for line in lab.metrics(name)]
