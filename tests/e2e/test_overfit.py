"""Two samples learnt by heart: training and real decoding must then agree that the drafter knows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Lab

pytestmark = pytest.mark.slow

STEPS = 160


@pytest.fixture
def two_samples(lab: Lab, tmp_path: Path) -> Path:
    """The first two responses of the example: 65 and 81 tokens."""
    responses = (ROOT / "examples" / "data" / "train_responses.jsonl").read_text().split("\n")[:2]
    (tmp_path / "two.jsonl").write_text("\n".join(responses) + "\n")
    lab.run("data", "prepare", tmp_path / "two.jsonl", tmp_path / "two")
    return tmp_path / "two"


def test_two_samples_learnt_by_heart_are_decoded_in_whole_blocks(
    lab: Lab, two_samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dflash import train
    from dflash.config import load_config
    from dflash.decode import decode_drafted
    from dflash.jsonl import read_samples
    from dflash.prepare import read_prepared

    monkeypatch.setenv("XDG_CACHE_HOME", lab.environ["XDG_CACHE_HOME"])
    assert os.environ["XDG_CACHE_HOME"] != str(Path.home() / ".cache")
    settings = {
        "data.path": two_samples,
        "data.row_tokens": 352,
        "data.anchors_per_row": 48,
        "run.steps": STEPS,
        "run.dir": tmp_path / "run",
        "target.features": "cached",
        "target.feature_cache": tmp_path / "features",
        "compile.enabled": "false",  # a graph of its own would cost more than it saves here
    }
    config = load_config(lab.config("overfit"), [f"{key}={value}" for key, value in settings.items()])
    training = train.build(config)
    right = slots = 0
    for step in range(STEPS):
        _, _, counts, _ = train.train_step(training, step)
        if step >= STEPS - 5:
            right, slots = right + counts.right, slots + counts.slots
    assert right / slots > 0.99

    _, documents = read_prepared(two_samples)
    block = training.drafter.shape.block_size
    for sample, document in zip(read_samples(tmp_path / "two.jsonl"), documents, strict=True):
        prompt = document.tokens[: document.prompt_length]
        drafted = decode_drafted(
            training.target, training.drafter, prompt, max_new_tokens=len(sample.response_ids or ())
        )
        assert drafted.tokens == sample.response_ids
        assert drafted.accepted_length >= 0.9 * block
