"""Anchors, blocks and who may see whom: pure functions of a row's tensors.

In: packed rows. Out: a ``Batch`` with anchor slots, block tokens, labels and weights; and the attention rule in three
forms: a predicate (flex attention's mask_mod), a dense boolean mask (SDPA) and a slow double loop (the reference).

The rule, Q side = block tokens, KV side = [T context tokens | Q block tokens]. A block token of anchor a may see
    - context feature c if c lies in the document of a and c < a strictly: the target has not yet run token a when the
      drafter starts (facts of vLLM and SGLang serving; DFlash, arXiv 2602.06036, sec. 4.2);
    - every token of its own block, in both directions; no token of another block.
An unused anchor slot sees its own block only, so no row of the softmax is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dflash.batch import Batch, Row

DEFAULT_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}  # DFlash paper, appendix A.1


def default_gamma(block_size: int) -> float:
    """The paper's decay for its block sizes; for others the same proportion (gamma grows about as K * 7/16)."""
    return DEFAULT_GAMMA.get(block_size, max(1.0, block_size * 7.0 / 16.0))


def anchor_candidates(row: Row) -> Tensor:
    """[n] int64: tokens t with t and t+1 supervised and in one document, so that slot 1 has a label."""
    now, after = row.supervised[:-1], row.supervised[1:]
    same = row.documents[:-1] == row.documents[1:]
    return torch.nonzero(now & after & same).flatten()


def choose_anchors(row: Row, num_slots: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw up to ``num_slots`` anchors without replacement, sorted (neighbouring blocks share context).

    Returns:
        anchors [A] int64 (0 in unused slots) and valid [A] bool, used slots first.
    """
    candidates = anchor_candidates(row)
    count = min(num_slots, candidates.numel())
    drawn = candidates[torch.randperm(candidates.numel(), generator=generator)[:count]].sort().values
    anchors = torch.zeros(num_slots, dtype=torch.int64)
    anchors[:count] = drawn
    return anchors, torch.arange(num_slots) < count


def slot_weights(block_size: int, gamma: float) -> Tensor:
    """[K] float32: 0 for the clean slot 0, exp(-(k-1)/gamma) for slot k (DFlash paper, sec. 4.2)."""
    return torch.tensor([0.0] + [math.exp(-(k - 1) / gamma) for k in range(1, block_size)])


def make_batch(
    rows: Sequence[Row],
    drawn: Sequence[tuple[Tensor, Tensor]],
    *,
    block_size: int,
    mask_token_id: int,
    gamma: float,
) -> Batch:
    """Lay the blocks out for rows of equal length and their drawn anchors (``choose_anchors``)."""
    tokens = torch.stack([row.tokens for row in rows])  # [R, T]
    positions = torch.stack([row.positions for row in rows])
    documents = torch.stack([row.documents for row in rows])
    supervised = torch.stack([row.supervised for row in rows])
    anchors = torch.stack([anchor for anchor, _ in drawn])  # [R, A]
    valid = torch.stack([ok for _, ok in drawn])

    _num_rows, num_tokens = tokens.shape
    offsets = torch.arange(block_size)
    places = anchors[:, :, None] + offsets  # [R, A, K] index into the row
    inside = places < num_tokens
    flat = places.clamp(max=num_tokens - 1).flatten(1)  # [R, Q]

    def at(values: Tensor) -> Tensor:
        return values.gather(1, flat).view(places.shape)

    same_document = inside & (at(documents) == documents.gather(1, anchors)[:, :, None])
    counted = valid[:, :, None] & same_document & at(supervised)
    block_tokens = torch.full_like(places, mask_token_id)
    block_tokens[:, :, 0] = tokens.gather(1, anchors)
    return Batch(
        rows=tuple(row.index for row in rows),
        tokens=tokens,
        positions=positions,
        documents=documents,
        anchors=anchors,
        anchor_valid=valid,
        block_tokens=block_tokens.flatten(1),
        block_positions=(positions.gather(1, anchors)[:, :, None] + offsets).flatten(1),
        labels=torch.where(same_document, at(tokens), 0)[:, :, 1:].contiguous(),
        weights=(counted * slot_weights(block_size, gamma))[:, :, 1:].contiguous(),
    )


def block_mask_rule(
    documents: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The rule as a flex-attention ``mask_mod(row, head, q, kv) -> bool``; the tensors are [R, T], [R, A], [R, A]."""
    num_tokens = documents.shape[1]

    def may_see(row: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        slot = q // block_size
        anchor = anchors[row, slot]
        in_context = kv < num_tokens
        context = torch.where(in_context, kv, 0)
        same_document = documents[row, context] == documents[row, anchor]
        sees_context = in_context & (context < anchor) & same_document & anchor_valid[row, slot]
        sees_block = (~in_context) & ((kv - num_tokens) // block_size == slot)
        return sees_context | sees_block

    return may_see


def dense_mask(documents: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int) -> Tensor:
    """The rule as a boolean tensor [R, 1, Q, T+Q] for ``scaled_dot_product_attention`` (True = may see)."""
    num_rows, num_tokens = documents.shape
    num_slots = anchors.shape[1]
    device = documents.device
    token = torch.arange(num_tokens, device=device)
    same_document = documents[:, None, :] == documents.gather(1, anchors)[:, :, None]  # [R, A, T]
    context = same_document & (token < anchors[:, :, None]) & anchor_valid[:, :, None]
    slot = torch.arange(num_slots, device=device)
    own = (slot[:, None] == slot[None, :]).expand(num_rows, -1, -1)  # [R, A, A]
    blocks = own.repeat_interleave(block_size, dim=2)  # [R, A, Q]
    seen = torch.cat([context, blocks], dim=2)  # [R, A, T+Q]
    return seen.repeat_interleave(block_size, dim=1)[:, None]


def dense_mask_reference(documents: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int) -> Tensor:
    """``dense_mask`` written as the sentence in the module's docstring; slow, for tests."""
    num_rows, num_tokens = documents.shape
    num_block_tokens = anchors.shape[1] * block_size
    seen = torch.zeros(num_rows, 1, num_block_tokens, num_tokens + num_block_tokens, dtype=torch.bool)
    for r in range(num_rows):
        for q in range(num_block_tokens):
            slot = q // block_size
            anchor = int(anchors[r, slot])
            for c in range(num_tokens):
                if anchor_valid[r, slot] and documents[r, c] == documents[r, anchor] and c < anchor:
                    seen[r, 0, q, c] = True
            for b in range(num_block_tokens):
                if b // block_size == slot:
                    seen[r, 0, q, num_tokens + b] = True
    return seen
