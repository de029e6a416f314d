"""Features: online and cached are bit-equal, documents do not see each other, damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.data import Schedule, pack
from dflash.errors import InputError, RunError
from dflash.features import CachedFeatures, OnlineFeatures, build_cache, cache_key, document_spans, packed_features
from dflash.prepare import Document
from tests.dflash.helpers import MASK, random_document, row_of, tiny_target

TAPS = (1, 3)


def rows():
    documents = [Document(id=str(i), tokens=random_document(10 + 3 * i, 4, i)[0], prompt_length=4) for i in range(5)]
    return pack(documents, 32)[0]


def schedule() -> Schedule:
    return Schedule(
        rows=rows(), seed=0, rows_per_step=2, anchors_per_row=3, block_size=4, mask_token_id=MASK, gamma=4.0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cached_features_are_bit_equal_to_online_ones(tmp_path: Path, dtype: torch.dtype) -> None:
    target = tiny_target()
    target.model.to(dtype)
    target.embedding_weight = target.model.get_input_embeddings().weight
    cached = build_cache(target, rows(), TAPS, tmp_path / "features")
    online = OnlineFeatures(target, TAPS)
    for step in range(3):
        batch = schedule().batch(step)
        assert torch.equal(cached.features(batch), online.features(batch))
        assert cached.features(batch).dtype == dtype


def test_a_document_in_a_row_has_the_features_it_has_alone() -> None:
    target = tiny_target()
    first, second = random_document(12, 4, 0), random_document(7, 3, 1)
    together = row_of(first, second, row_tokens=24)
    features = packed_features(target, together.tokens[None], together.documents[None], TAPS)[0]
    _, alone = target.run(torch.tensor([second[0]]), TAPS, use_cache=False)
    torch.testing.assert_close(features[12:19], alone[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(features[19:], torch.zeros_like(features[19:]))


def test_spans_are_found_in_every_row_and_padding_is_in_none() -> None:
    documents = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 1]])
    assert document_spans(documents) == [(0, 2), (2, 1), (4, 1), (5, 3)]


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".tmp-features-x").mkdir()
    build_cache(tiny_target(), rows(), TAPS, tmp_path / "features")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["features"]


def test_a_damaged_row_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    build_cache(tiny_target(), rows(), TAPS, tmp_path / "features")
    array = np.load(tmp_path / "features" / "features.npy", mmap_mode="r+")
    array[1, 3, 5] ^= 1
    array.flush()
    cached = CachedFeatures(tmp_path / "features")
    assert cached.row(0).isfinite().all()
    with pytest.raises(RunError, match="row 1 is damaged"):
        cached.row(1)


@pytest.mark.parametrize("file", ["features.json", "features.npy"])
def test_an_incomplete_cache_is_refused(tmp_path: Path, file: str) -> None:
    build_cache(tiny_target(), rows(), TAPS, tmp_path / "features")
    (tmp_path / "features" / file).write_bytes(b"{}")
    with pytest.raises(InputError, match="damaged feature cache"):
        CachedFeatures(tmp_path / "features")


def test_the_key_names_everything_the_values_depend_on() -> None:
    base = cache_key("target", rows(), TAPS, torch.float32)
    assert cache_key("target", rows(), TAPS, torch.float32) == base
    other_rows = rows()
    other_rows[0].tokens[0] += 1
    for changed in (
        cache_key("other", rows(), TAPS, torch.float32),
        cache_key("target", rows(), (1, 4), torch.float32),
        cache_key("target", rows(), TAPS, torch.bfloat16),
        cache_key("target", other_rows, TAPS, torch.float32),
    ):
        assert changed != base
