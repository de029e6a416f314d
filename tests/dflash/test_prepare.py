"""Prepared data: masked prompts, recorded hashes, and no damage that is not named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash.errors import InputError
from dflash.prepare import prepare, read_prepared
from dflash.target import TargetFiles


@pytest.fixture
def files(tmp_path: Path) -> TargetFiles:
    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(20)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.chat_template = "t1 {{ messages[0]['content'] }} t3"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return TargetFiles(directory=str(tmp_path / "tokenizer"), fingerprint="target")


@pytest.fixture
def prepared(tmp_path: Path, files: TargetFiles) -> Path:
    samples: list[dict[str, Any]] = [
        {"id": "text", "prompt": "t5 t6", "response": "t7 t8"},
        {"id": "ids", "prompt": "t5", "response": "ignored", "response_ids": [9, 10, 2]},
        {"id": "short", "prompt": "t5", "response": "", "response_ids": [2]},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    prepare(tmp_path / "r.jsonl", tmp_path / "out", files, eos_id=2, vocab_size=20)
    return tmp_path / "out"


def test_prompt_and_response_are_laid_out_and_the_short_one_is_counted(prepared: Path) -> None:
    record, documents = read_prepared(prepared)
    assert [(d.id, d.tokens, d.prompt_length) for d in documents] == [
        ("text", [1, 5, 6, 3, 7, 8, 2], 4),  # text is ended with the end token
        ("ids", [1, 5, 3, 9, 10, 2], 3),  # ids are taken as they are
    ]
    assert (record.samples, record.skipped_short, record.tokens, record.supervised_tokens) == (2, 1, 13, 6)
    assert record.max_token_id == 10
    assert record.target_fingerprint == "target"


def test_what_exists_is_not_overwritten(tmp_path: Path, files: TargetFiles, prepared: Path) -> None:
    with pytest.raises(InputError, match="exists"):
        prepare(tmp_path / "r.jsonl", prepared, files, eos_id=2, vocab_size=20)


@pytest.mark.parametrize(
    "change",
    [
        {"files": None}, {"files": []}, {"files": {}}, {"max_token_id": "x"}, {"target_fingerprint": 3},
        {"skipped_short": "x"}, {"schema": "1"}, {"schema": 2}, {"unknown": 1},
    ],
)  # fmt: skip
def test_a_record_that_is_not_as_written_is_refused(prepared: Path, change: dict[str, Any]) -> None:
    path = prepared / "prepared.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=str(prepared)):
        read_prepared(prepared)


def test_arrow_files_that_are_changed_gone_or_too_many_are_refused(prepared: Path) -> None:
    arrow = next(prepared.glob("*.arrow"))
    shutil.copy(arrow, prepared / "more.arrow")
    with pytest.raises(InputError, match="not those of"):
        read_prepared(prepared)
    (prepared / "more.arrow").unlink()
    data = bytearray(arrow.read_bytes())
    data[200] ^= 1
    arrow.write_bytes(data)
    with pytest.raises(InputError, match="missing or damaged"):
        read_prepared(prepared)
    arrow.unlink()
    with pytest.raises(InputError, match="not those of"):
        read_prepared(prepared)


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a prepared data set"):
        read_prepared(tmp_path)
