"""What a user can get wrong is one clear line with the documented exit code, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Lab

pytestmark = pytest.mark.slow


def refused(lab: Lab, *arguments: object, code: int = 2, **environ: str) -> str:
    done = lab.run(*arguments, expect=code, **environ)
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


def train(lab: Lab, tmp_path: Path, *settings: str) -> str:
    sets = [part for setting in settings for part in ("--set", setting)]
    return refused(lab, "train", lab.config("bad"), "--set", f"run.dir={tmp_path / 'run'}", *sets)


def test_config_file_missing(lab: Lab, tmp_path: Path) -> None:
    assert "no such config file" in refused(lab, "train", tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("data.path=/nowhere", "not a prepared data set"),
        ("target.model=/nowhere", "no such directory"),
        ("target.model=package:no_such_package", "no such package is installed"),
        ("target.num_taps=29", "do not fit"),
        ("drafter.mask_token_id=60000", "outside the target's vocabulary of 49152"),
        ("drafter.mask_token_id=2", "occurs in"),
        ("drafter.attention=flex", "no CPU backward"),
    ],
)
def test_settings_that_do_not_fit(lab: Lab, tmp_path: Path, setting: str, part: str) -> None:
    more = ["run.device=cpu"] if "flex" in setting else []
    assert part in train(lab, tmp_path, setting, *more)


def test_data_set_with_a_flipped_bit(lab: Lab, tmp_path: Path) -> None:
    shutil.copytree(lab.path / "prepared", tmp_path / "prepared")
    arrow = next((tmp_path / "prepared").glob("*.arrow"))
    data = bytearray(arrow.read_bytes())
    data[len(data) // 2] ^= 1
    arrow.write_bytes(data)
    assert f"{arrow}: missing or damaged" in train(lab, tmp_path, f"data.path={tmp_path / 'prepared'}")


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"not a model at all", "not a GGUF file"), (b"GGUF" + b"\x03" + bytes(60), "cannot be read as GGUF")],
    ids=["text", "cut"],
)
def test_gguf_that_is_none(lab: Lab, tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    assert part in train(lab, tmp_path, f"target.model={tmp_path / 'bad.gguf'}")


def test_hub_out_of_reach(lab: Lab, tmp_path: Path) -> None:
    error = refused(
        lab, "train", lab.config("bad"), "--set", f"run.dir={tmp_path / 'run'}", "--set", "target.model=no/such-model",
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert "the hub did not give it" in error


def test_prompts_without_text(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": "a", "prompt": ""}) + "\n")
    assert "p.jsonl:1: prompt must be a text" in refused(lab, "data", "generate", tmp_path / "p.jsonl", tmp_path / "o")
    assert "p.jsonl:1" in refused(lab, "evaluate", lab.path, "--prompts", tmp_path / "p.jsonl")


def test_token_outside_the_vocabulary(lab: Lab, tmp_path: Path) -> None:
    sample = {"id": "a", "prompt": "x", "response": "y", "response_ids": [5, 49152, 2]}
    (tmp_path / "r.jsonl").write_text(json.dumps(sample) + "\n")
    error = refused(lab, "data", "prepare", tmp_path / "r.jsonl", tmp_path / "out")
    assert "sample 1 (a) holds token id 49152, outside the vocabulary of 49152" in error
    assert not (tmp_path / "out").exists()


def test_short_samples_are_skipped_and_counted(lab: Lab, tmp_path: Path) -> None:
    samples = [{"id": str(i), "prompt": "x", "response": "y", "response_ids": [5, 6, 2][i:]} for i in range(3)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    done = lab.run("data", "prepare", tmp_path / "r.jsonl", tmp_path / "out", "--json")
    assert (json.loads(done.stdout)["samples"], json.loads(done.stdout)["skipped_short"]) == (2, 1)


def test_checkpoint_missing(lab: Lab, tmp_path: Path) -> None:
    prompts = ROOT / "examples" / "data" / "heldout_prompts.jsonl"
    assert "no checkpoint here" in refused(lab, "evaluate", tmp_path, "--prompts", prompts)
    assert "no checkpoint here" in refused(lab, "export", tmp_path, tmp_path / "out")


def test_snapshot_unknown(lab: Lab, tmp_path: Path) -> None:
    (lab.path / "store").mkdir(exist_ok=True)
    refused(lab, "cache", "restore", "no-such-name", "--store", tmp_path / "empty-store")


def test_generate_is_resumable_and_greedy(lab: Lab, tmp_path: Path) -> None:
    """Two prompts, killed in the middle of a line, then again: the same bytes as the example's first ids."""
    prompts = (ROOT / "examples" / "data" / "train_prompts.jsonl").read_text().split("\n")[:2]
    (tmp_path / "p.jsonl").write_text("\n".join(prompts) + "\n")
    arguments = ("data", "generate", tmp_path / "p.jsonl", tmp_path / "out.jsonl", "--max-new-tokens", 12)
    lab.run(*arguments)
    whole = (tmp_path / "out.jsonl").read_text()
    (tmp_path / "out.jsonl").write_text(whole[: whole.index("\n") + 20])
    done = lab.run(*arguments, "--json")
    assert (tmp_path / "out.jsonl").read_text() == whole
    assert (json.loads(done.stdout)["written"], json.loads(done.stdout)["already_there"]) == (1, 1)
    shipped = (ROOT / "examples" / "data" / "train_responses.jsonl").read_text().split("\n")[:2]
    for ours, theirs in zip(whole.splitlines(), shipped, strict=True):
        assert json.loads(ours)["response_ids"] == json.loads(theirs)["response_ids"][:12]
