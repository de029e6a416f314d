"""A tiny target and drafter with the real architecture, and rows made by hand."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash.anchors import make_batch
from dflash.attention import AttentionPlan, make_dense_plan
from dflash.batch import Batch, Row
from dflash.data import make_row
from dflash.drafter import Drafter, DrafterShape, target_layer_ids
from dflash.features import packed_features
from dflash.step import drafter_logits
from dflash.target import Target, TargetFiles

VOCAB = 97
MASK = 96
HIDDEN = 32
LAYERS = 6


def tiny_target(seed: int = 0) -> Target:
    """Six random Llama layers with grouped heads and tied embeddings, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return Target(model, None, TargetFiles(directory="tiny", fingerprint="tiny"))


def tiny_shape(block_size: int = 4, num_layers: int = 2, **changes: Any) -> DrafterShape:
    """A drafter for ``tiny_target``."""
    fields: dict[str, Any] = {
        "num_layers": num_layers,
        "block_size": block_size,
        "mask_token_id": MASK,
        "target_layer_ids": target_layer_ids(LAYERS, 2),
        "num_target_layers": LAYERS,
        "target_hidden_size": HIDDEN,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256,
    }
    return DrafterShape(**(fields | changes))


def tiny_drafter(shape: DrafterShape | None = None, seed: int = 1) -> Drafter:
    """Random weights large enough that every part of the network matters."""
    drafter = Drafter(shape or tiny_shape())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0.0, 0.25, generator=generator)
    return drafter


def random_document(length: int, prompt_length: int, seed: int) -> tuple[list[int], int]:
    """(tokens, prompt_length) with ids that are neither special nor the mask."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, MASK, (length,), generator=generator).tolist(), prompt_length


def row_of(*documents: tuple[list[int], int], row_tokens: int) -> Row:
    """A packed row."""
    return make_row(0, documents, row_tokens)


def batch_of(row: Row, anchors: list[int], *, slots: int, block_size: int = 4, gamma: float = 4.0) -> Batch:
    """A batch of one row with these anchors; the other slots are unused."""
    drawn = torch.zeros(slots, dtype=torch.int64)
    drawn[: len(anchors)] = torch.tensor(anchors, dtype=torch.int64)
    valid = torch.arange(slots) < len(anchors)
    return make_batch([row], [(drawn, valid)], block_size=block_size, mask_token_id=MASK, gamma=gamma)


def features_of(target: Target, batch: Batch, shape: DrafterShape) -> torch.Tensor:
    """[1, T, N*D] of a one-row batch."""
    return packed_features(target, batch.tokens, batch.documents, shape.target_layer_ids)


def plan_of(batch: Batch, block_size: int = 4) -> AttentionPlan:
    """The SDPA plan of a batch."""
    return make_dense_plan(batch.documents, batch.anchors, batch.anchor_valid, block_size)


def logits_of(drafter: Drafter, target: Target, batch: Batch, features: torch.Tensor) -> torch.Tensor:
    """[1, A, K-1, V] as training computes them."""
    return drafter_logits(
        drafter,
        target.embedding_weight,
        target.head_weight,
        features,
        batch.positions,
        batch.block_tokens,
        batch.block_positions,
        plan_of(batch, drafter.shape.block_size),
    )
