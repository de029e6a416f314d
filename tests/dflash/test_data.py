"""Samples, packing and the schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data import Schedule, pack
from dflash.errors import InputError
from dflash.generate import generate_file
from dflash.jsonl import Sample, cut_partial_line, dump_sample, read_samples
from dflash.prepare import Document
from tests.dflash.helpers import MASK, random_document, tiny_target


def document(length: int, prompt_length: int, seed: int = 0) -> Document:
    return Document(id=str(seed), tokens=random_document(length, prompt_length, seed)[0], prompt_length=prompt_length)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 50), st.integers(0, 10)), min_size=1, max_size=12))
def test_packing_keeps_every_usable_document_whole_and_once(shapes: list[tuple[int, int]]) -> None:
    documents = [document(length, prompt, seed) for seed, (length, prompt) in enumerate(shapes)]
    usable = [d for d in documents if min(len(d.tokens), 40) - d.prompt_length >= 2]
    if not usable:
        with pytest.raises(InputError, match="two supervised"):
            pack(documents, 40)
        return
    rows, left_out = pack(documents, 40)
    assert left_out == len(documents) - len(usable)
    found = []
    for row in rows:
        assert row.tokens.shape == (40,)
        for number in range(int(row.documents.max()) + 1):
            inside = row.documents == number
            found.append((row.tokens[inside].tolist(), int((~row.supervised[inside]).sum())))
            assert row.positions[inside].tolist() == list(range(int(inside.sum())))
        assert not row.supervised[row.documents < 0].any()
    assert sorted(found) == sorted((d.tokens[:40], d.prompt_length) for d in usable)


def schedule(seed: int = 3) -> Schedule:
    rows, _ = pack([document(20 + i, 4, i) for i in range(6)], 30)
    return Schedule(
        rows=rows, seed=seed, rows_per_step=2, anchors_per_row=4, block_size=4, mask_token_id=MASK, gamma=4.0
    )


def test_a_step_is_a_function_of_seed_and_step_alone() -> None:
    first, second = schedule(), schedule()
    for step in (7, 0, 3):  # asked in any order
        a, b = first.batch(step), second.batch(step)
        assert a.rows == b.rows
        assert torch.equal(a.anchors, b.anchors)
    assert not torch.equal(schedule(4).batch(0).anchors, schedule(3).batch(0).anchors)


def test_every_epoch_sees_every_row_once_in_another_order_with_other_anchors() -> None:
    plan = schedule()
    assert len(plan.rows) == 6
    epochs = [[row for step in range(3 * e, 3 * e + 3) for row in plan.batch(step).rows] for e in range(3)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert plan.epoch(3) == 1.0


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"id": "a"}', "prompt must be a text"),
        ('{"id": "a", "prompt": "  "}', "prompt must be a text that is not empty"),
        ('{"id": "a", "prompt": "x", "response": 3}', "response must be a text"),
        ('{"id": "a", "prompt": "x", "response_ids": [1, -2]}', "list of token ids"),
        ('{"id": "a", "prompt": "x", "response_ids": [true]}', "list of token ids"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, part: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "first", "prompt": "good"}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        read_samples(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert part in str(caught.value)


def test_missing_empty_binary_and_repeated_are_clear(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_samples(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="holds no samples"):
        read_samples(tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_samples(tmp_path / "binary.jsonl")
    (tmp_path / "twice.jsonl").write_text('{"id": "a", "prompt": "x"}\n' * 2)
    with pytest.raises(InputError, match="repeats the id 'a'"):
        read_samples(tmp_path / "twice.jsonl")


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path: Path) -> None:
    sample = Sample(id="a", prompt="one\u2028two\x85three\nfour", response="r", response_ids=(1, 2), finish="stop")
    path = tmp_path / "p.jsonl"
    path.write_text(dump_sample(sample) + "\n")
    assert read_samples(path) == [sample]


def test_a_half_written_last_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n{"id": "b", "pro')
    cut_partial_line(path)
    assert path.read_text() == '{"id": "a", "prompt": "x"}\n'


@pytest.mark.parametrize("line", ['{"id": "a", "prompt": "\\ud800"}', '{"id": "\\udfff", "prompt": "x"}', "[" * 5000])
def test_what_is_no_text_or_no_json_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"p\.jsonl:1: "):
        read_samples(path)


@pytest.mark.parametrize(
    "content",
    [
        b"my precious notes, no newline",
        b'{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "y"}',
        b"notes\nmore notes\n",
    ],
    ids=["notes", "prompts", "lines"],
)
def test_generate_does_not_touch_a_file_that_is_not_its_own(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(InputError):
        generate_file(tiny_target(), [Sample(id="c", prompt="z")], out, batch_size=1, max_new_tokens=1)
    assert out.read_bytes() == content


def test_generate_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        generate_file(tiny_target(), [Sample(id="c", prompt="z")], tmp_path, batch_size=1, max_new_tokens=1)
