"""The drafter's attention, three ways with one result: flex (CUDA), masked SDPA (CPU) and a double loop (tests).

In: q [R, Hq, Q, d], k and v [R, Hkv, T+Q, d] (grouped heads, Hkv divides Hq) and an ``AttentionPlan``.
Out: [R, Hq, Q, d]. Flex attention has no CPU backward in torch 2.11 (``_validate_device``), and a dense mask on CUDA
falls to a slow kernel, hence one way a device. The reference is never used in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention

from dflash.anchors import block_mask_rule, dense_mask
from dflash.blockmask import block_mask
from dflash.compile.dense import flex_or_die

Kind = Literal["flex", "sdpa", "reference"]


@dataclass(frozen=True)
class AttentionPlan:
    """How to attend in this step: the kind and its mask."""

    kind: Kind
    mask: Tensor | BlockMask
    """BlockMask for flex, else bool [R, 1, Q, T+Q]."""
    kernel_options: dict[str, Any] | None = None
    """Flex only; None leaves them to torch (see ``compile/kernels.py``)."""


def default_kind(device: torch.device) -> Kind:
    """Flex on CUDA, SDPA elsewhere."""
    return "flex" if device.type == "cuda" else "sdpa"


def make_block_mask(documents: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int) -> BlockMask:
    """The anchor rule as flex attention's block mask; call it compiled: eager, it materialises [R, Q, T+Q]."""
    num_rows, num_tokens = documents.shape
    num_block_tokens = anchors.shape[1] * block_size
    rule = block_mask_rule(documents, anchors, anchor_valid, block_size)
    return block_mask(rule, num_rows, num_block_tokens, num_tokens + num_block_tokens, documents.device)


def make_dense_plan(documents: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int) -> AttentionPlan:
    """The plan of the SDPA path."""
    return AttentionPlan("sdpa", dense_mask(documents, anchors, anchor_valid, block_size))


def attend(q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan) -> Tensor:
    """Softmax attention under the plan's mask, scale 1/sqrt(d).

    Raises:
        DenseAttentionError: flex attention was reached outside ``torch.compile``, where it would build the dense
            [Q, T+Q] scores of every head (the 276 GiB allocation of a hit recompile limit).
    """
    if plan.kind == "flex":
        return flex_or_die(q, k, v, block_mask=plan.mask, enable_gqa=True, kernel_options=plan.kernel_options)
    if plan.kind == "sdpa":
        return scaled_dot_product_attention(q, k, v, attn_mask=plan.mask, enable_gqa=True)
    return attend_reference(q, k, v, plan.mask)


def attend_reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention one query at a time, straight from the definition; slow, for tests."""
    num_rows, num_heads, num_queries, head_dim = q.shape
    group = num_heads // k.shape[1]
    rows = []
    for r in range(num_rows):
        heads = []
        for h in range(num_heads):
            keys, values = k[r, h // group], v[r, h // group]
            out = []
            for i in range(num_queries):
                seen = mask[r, 0, i]
                scores = keys[seen] @ q[r, h, i] / head_dim**0.5
                out.append(torch.softmax(scores, dim=0) @ values[seen])
            heads.append(torch.stack(out))
        rows.append(torch.stack(heads))
    return torch.stack(rows)
