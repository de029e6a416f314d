"""Flex attention's block mask from a rule, without sorting, so that it compiles in seconds.

In: a ``mask_mod`` and lengths. Out: a ``BlockMask`` equal, field by field, to that of torch's ``create_block_mask``.
Torch orders the blocks of a row with a stable ``argsort``, four times in one kernel; ptxas needs minutes for that
kernel (half of a cold start on an H200: 44 s of 85 s, and 160 s with 8192 block tokens). A running sum says the same:
the n-th used block goes to place n, the n-th unused one behind the used ones. The rule is called once, on indices that
broadcast: torch's ``create_mask`` calls it under four nested ``vmap``s, which Dynamo traces for half a second at every
start, cached or not. Call it compiled: eager, it materialises [R, Q, KV].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

BLOCK = 128
"""Queries and keys of a block: the default of flex attention's kernels."""

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def block_mask(rule: MaskRule, num_rows: int, num_queries: int, num_keys: int, device: torch.device) -> BlockMask:
    """The blocks of ``rule(row, head, q, kv)``, the same for every head, partial and full ones apart.

    ``rule`` has to broadcast: its arguments are int64 [R, 1, 1, 1], [1, 1, 1, 1], [1, 1, Q, 1] and [1, 1, 1, KV].
    """
    row = torch.arange(num_rows, device=device).view(-1, 1, 1, 1)
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    q = torch.arange(num_queries, device=device).view(1, 1, -1, 1)
    kv = torch.arange(num_keys, device=device).view(1, 1, 1, -1)
    mask = rule(row, head, q, kv).expand(num_rows, 1, num_queries, num_keys)  # compiled, never real
    mask = pad(mask, (0, -num_keys % BLOCK, 0, -num_queries % BLOCK))
    rows, heads, queries, keys = mask.shape
    counts = mask.view(rows, heads, queries // BLOCK, BLOCK, keys // BLOCK, BLOCK).sum((3, 5))
    full = counts == BLOCK * BLOCK
    partial = (counts > 0) & ~full
    kv_num_blocks, kv_indices = ordered(partial)
    full_kv_num_blocks, full_kv_indices = ordered(full)
    q_num_blocks, q_indices = ordered(partial.mT)
    full_q_num_blocks, full_q_indices = ordered(full.mT)
    return BlockMask(
        seq_lengths=(num_queries, num_keys),
        kv_num_blocks=kv_num_blocks,
        kv_indices=kv_indices,
        full_kv_num_blocks=full_kv_num_blocks,
        full_kv_indices=full_kv_indices,
        q_num_blocks=q_num_blocks,
        q_indices=q_indices,
        full_q_num_blocks=full_q_num_blocks,
        full_q_indices=full_q_indices,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=rule,
    )


def ordered(used: Tensor) -> tuple[Tensor, Tensor]:
    """How many columns of each line are used, and all columns, used ones first, each part in rising order.

    Args:
        used: bool [..., C].

    Returns:
        int32 [...] and int32 [..., C]; what ``_dense_to_ordered`` of torch/nn/attention/flex_attention.py gives.
    """
    upto = used.cumsum(-1)  # used columns up to and with this one
    total = upto[..., -1:]
    columns = torch.arange(used.shape[-1], device=used.device)
    place = torch.where(used, upto - 1, total + columns - upto)
    indices = torch.zeros(used.shape, dtype=torch.int32, device=used.device)
    indices = indices.scatter(-1, place, columns.to(torch.int32).expand(used.shape))
    return total.squeeze(-1).to(torch.int32), indices
