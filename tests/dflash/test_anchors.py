"""Anchors, labels, weights and the mask rule, against values worked out by hand and a double loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.anchors import (
    anchor_candidates,
    block_mask_rule,
    choose_anchors,
    default_gamma,
    dense_mask,
    dense_mask_reference,
    slot_weights,
)
from dflash.data import make_row
from tests.dflash.helpers import MASK, batch_of, random_document, row_of


def test_weights_of_block_4_gamma_2_are_those_of_the_paper() -> None:
    assert slot_weights(4, 2.0).tolist() == pytest.approx([0.0, 1.0, 0.6065, 0.3679], abs=5e-5)


@pytest.mark.parametrize(("block_size", "gamma"), [(16, 7.0), (10, 5.0), (8, 4.0)])
def test_default_gamma_is_the_papers(block_size: int, gamma: float) -> None:
    assert default_gamma(block_size) == gamma


def test_block_is_the_anchor_then_masks_at_the_following_positions_with_same_position_labels() -> None:
    row = row_of(([10, 11, 12], 1), ([20, 21, 22, 23, 24, 25, 26], 2), row_tokens=12)
    batch = batch_of(row, [3 + 2], slots=1, gamma=2.0)  # token 22, third of the second document
    assert batch.block_tokens.tolist() == [[22, MASK, MASK, MASK]]
    assert batch.block_positions.tolist() == [[2, 3, 4, 5]]  # positions restart with the document
    assert batch.labels.tolist() == [[[23, 24, 25]]]
    assert batch.weights[0, 0].tolist() == pytest.approx([1.0, 0.6065, 0.3679], abs=5e-5)


def test_weights_are_zero_past_the_document_on_unsupervised_tokens_and_in_unused_slots() -> None:
    row = row_of(([10, 11, 12, 13], 1), ([20, 21, 22, 23, 24], 3), row_tokens=9)
    batch = batch_of(row, [2, 4], slots=3)
    assert (batch.weights[0] > 0).tolist() == [[True, False, False], [False, False, True], [False, False, False]]
    assert batch.labels[0, 0].tolist() == [13, 0, 0]  # never a token of the next document


def test_block_at_the_end_of_the_row_stays_inside() -> None:
    row = row_of(([10, 11, 12, 13], 0), row_tokens=4)
    batch = batch_of(row, [2], slots=1)
    assert batch.labels.tolist() == [[[13, 0, 0]]]
    assert (batch.weights[0, 0] > 0).tolist() == [True, False, False]


def test_candidates_have_a_supervised_successor_in_their_document() -> None:
    row = row_of(([1, 2, 3, 4], 2), ([5, 6, 7], 2), ([8, 9, 10], 0), row_tokens=12)
    assert anchor_candidates(row).tolist() == [2, 7, 8]


def test_chosen_anchors_are_sorted_distinct_candidates_and_unused_slots_come_last() -> None:
    row = row_of(random_document(40, 10, 0), row_tokens=48)
    anchors, valid = choose_anchors(row, 8, torch.Generator().manual_seed(0))
    assert valid.all()
    assert anchors.tolist() == sorted(set(anchors.tolist()))
    assert set(anchors.tolist()) <= set(anchor_candidates(row).tolist())
    few, few_valid = choose_anchors(row, 64, torch.Generator().manual_seed(0))
    assert few_valid.tolist() == [True] * 29 + [False] * 35
    assert few[29:].tolist() == [0] * 35


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    picks=st.lists(st.integers(0, 10_000), min_size=0, max_size=3),
    block_size=st.integers(2, 4),
)
def test_dense_mask_and_flex_rule_equal_the_double_loop(lengths: list[int], picks: list[int], block_size: int) -> None:
    row = make_row(0, [([3] * n, 0) for n in lengths], 30)
    anchors = torch.zeros(1, 3, dtype=torch.int64)
    anchors[0, : len(picks)] = torch.tensor([pick % sum(lengths) for pick in picks], dtype=torch.int64)
    valid = torch.arange(3)[None] < len(picks)
    documents = row.documents[None]
    wanted = dense_mask_reference(documents, anchors, valid, block_size)
    assert torch.equal(dense_mask(documents, anchors, valid, block_size), wanted)
    rule = block_mask_rule(documents, anchors, valid, block_size)
    num_q, num_kv = wanted.shape[2:]
    q, kv = torch.meshgrid(torch.arange(num_q), torch.arange(num_kv), indexing="ij")
    zero = torch.zeros_like(q)
    assert torch.equal(rule(zero, zero, q, kv), wanted[0, 0])
