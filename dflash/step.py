"""The compiled region: one drafter step from features to loss.

In: the drafter, the target's frozen embedding and head, features, a batch's tensors. Out: loss and correctness.
It does not call backward, clip or step: ``train.py`` does. The compile cache's key depends on these very functions and
on their argument names, so warm-up, training and benchmarks all call them from this module.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear

from dflash.attention import AttentionPlan
from dflash.batch import StepOutput
from dflash.drafter import Drafter


def drafter_logits(
    drafter: Drafter,
    embedding_weight: Tensor,
    head_weight: Tensor,
    features: Tensor,
    positions: Tensor,
    block_tokens: Tensor,
    block_positions: Tensor,
    plan: AttentionPlan,
) -> Tensor:
    """Logits [R, A, K-1, V] of slots 1 … K-1 of every block (slot 0 is given, so its head is never computed)."""
    dtype = drafter.fc.weight.dtype
    block_size = drafter.shape.block_size
    context_kv = drafter.context_keys_values(features.to(dtype), positions)
    embeddings = embedding(block_tokens, embedding_weight).to(dtype)
    hidden = drafter(context_kv, embeddings, block_positions, plan)  # [R, Q, H]
    predicted = hidden.unflatten(1, (-1, block_size))[:, :, 1:]  # [R, A, K-1, H]
    # One matrix product over all slots: batched over [R, A] it is seven times slower on a CPU.
    logits = linear(predicted.flatten(0, 2), head_weight.to(dtype))
    return logits.unflatten(0, predicted.shape[:3])


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """sum(w * CE) / sum(w) in float32 over [R, A, K-1] slots (DFlash paper, sec. 4.2); 0 if every weight is 0."""
    ce = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="none")
    total = weights.sum()
    return (ce * weights.flatten()).sum() / torch.where(total > 0, total, 1.0)


def drafter_step(
    drafter: Drafter,
    embedding_weight: Tensor,
    head_weight: Tensor,
    features: Tensor,
    positions: Tensor,
    block_tokens: Tensor,
    block_positions: Tensor,
    labels: Tensor,
    weights: Tensor,
    plan: AttentionPlan,
) -> StepOutput:
    """Forward to the loss; shapes as in ``Batch``."""
    logits = drafter_logits(
        drafter, embedding_weight, head_weight, features, positions, block_tokens, block_positions, plan
    )
    loss = weighted_loss(logits, labels, weights)
    with torch.no_grad():
        correct = logits.argmax(-1) == labels
    return StepOutput(loss=loss, correct=correct)
