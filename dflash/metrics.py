"""What a step tells: accepted length and slot accuracy, as (sum, total) so that they can be added before dividing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.batch import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCounts:
    """Counts of one step; all on the CPU."""

    blocks: int
    """Anchors in use."""
    accepted: int
    """Tokens emitted if each block were verified once: 1 + the leading run of right slots, summed over blocks."""
    slots: int
    """Slots that carry a loss."""
    right: int
    """Of those, predicted rightly."""

    @property
    def accepted_length(self) -> float:
        """Mean tokens a verify step, in [1, K]: per-block products of correctness, never a product of marginals."""
        return self.accepted / self.blocks if self.blocks else 1.0

    @property
    def accuracy(self) -> float:
        """Share of right slots."""
        return self.right / self.slots if self.slots else 0.0


def count_step(correct: Tensor, batch: Batch) -> StepCounts:
    """Counts from ``correct`` [R, A, K-1] bool; a slot without a label ends a block's run. One device sync."""
    counted = batch.weights > 0
    right = correct & counted
    run = right.cumprod(dim=-1).sum()
    blocks = batch.anchor_valid.sum()
    values = torch.stack([blocks, blocks + run, counted.sum(), right.sum()]).tolist()
    return StepCounts(blocks=values[0], accepted=values[1], slots=values[2], right=values[3])
