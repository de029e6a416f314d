"""The tensors that flow through a training step: shapes are stated here, once.

Legend used in every tensor module:
    R rows of a step · T packed tokens of a row · A anchor slots of a row · K block size · Q = A*K block tokens
    N tapped target layers · D target hidden size · H drafter hidden size · V vocabulary

A ``Batch`` is made on the CPU by ``data.py`` and ``anchors.py``, moved once, and never changed. It holds no features:
those come from a ``FeatureSource`` (``features.py``), as one tensor [R, T, N*D].
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One packed row: documents one after the other, then padding."""

    index: int
    """Place of the row in the packed data set; a feature cache is indexed by it."""
    tokens: Tensor
    """[T] int64; padding is 0."""
    positions: Tensor
    """[T] int64, from 0 again at each document (what RoPE sees)."""
    documents: Tensor
    """[T] int64, 0, 1, 2 … within the row, -1 on padding."""
    supervised: Tensor
    """[T] bool, tokens that carry a loss (the response)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """R rows with their anchors: everything a step needs but the target's features."""

    rows: tuple[int, ...]
    tokens: Tensor
    """[R, T] int64."""
    positions: Tensor
    """[R, T] int64."""
    documents: Tensor
    """[R, T] int64."""
    anchors: Tensor
    """[R, A] int64, index into the row; 0 where the slot is unused."""
    anchor_valid: Tensor
    """[R, A] bool."""
    block_tokens: Tensor
    """[R, Q] int64: the anchor's token in slot 0, the mask token elsewhere."""
    block_positions: Tensor
    """[R, Q] int64: position of the anchor + slot."""
    labels: Tensor
    """[R, A, K-1] int64: token anchor + k for slot k = 1 … K-1 (same-position labels); 0 where there is none."""
    weights: Tensor
    """[R, A, K-1] float32: exp(-(k-1)/gamma), 0 on unused slots, past the document and on unsupervised tokens."""

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in moved.items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """What the compiled step returns."""

    loss: Tensor
    """[] float32, sum(w * CE) / sum(w)."""
    correct: Tensor
    """[R, A, K-1] bool: the drafter's argmax equals the label."""
