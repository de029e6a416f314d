"""The DFlash drafter: target features and block embeddings in, hidden states of the block out.

In: features [R, T, N*D], block embeddings [R, Q, H], positions, an ``AttentionPlan``. Out: hidden states [R, Q, H].
No loss, no embedding, no head (both are the target's, frozen), no configuration parsing.
Parameters carry the serving names (11 a layer plus fc, hidden_norm, norm: 58 tensors for 5 layers), so an export is a
copy. Layer = Qwen3 layer without causality, with the context's K and V injected: the fused context bypasses q, o_proj,
the layer's input norm and the MLP (DFlash, arXiv 2602.06036, sec. 4.1; z-lab ``dflash/model.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from dflash.attention import AttentionPlan, attend


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterShape:
    """Everything that decides the drafter's tensors and graph; stored in checkpoints and exports."""

    num_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    target_hidden_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int

    def qwen3_config(self) -> Qwen3Config:
        """The same shape in transformers' words (what the Qwen3 building blocks and the export read)."""
        return Qwen3Config(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=False,
            attention_bias=False,
            use_sliding_window=False,
            layer_types=["full_attention"] * self.num_layers,
        )


def target_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """0-based layers whose outputs are tapped, even from the 2nd to the 3rd-last (z-lab ``build_target_layer_ids``).

    30 layers, 5 taps: (1, 8, 14, 20, 27); Python's round, half to even.

    Raises:
        ValueError: fewer target layers than the taps need.
    """
    if num_taps == 1:
        return (num_target_layers // 2,)
    last = num_target_layers - 3
    ids = tuple(round(1 + i * (last - 1) / (num_taps - 1)) for i in range(num_taps))
    if num_taps < 1 or len(set(ids)) != num_taps or last < 1:
        raise ValueError(f"{num_taps} taps do not fit between layers 1 and {last} of {num_target_layers}")
    return ids


Rotary = tuple[Tensor, Tensor]


class DrafterAttention(nn.Module):
    """Queries from the block, keys and values from context and block."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        q_size = shape.num_attention_heads * shape.head_dim
        kv_size = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, shape.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(shape.head_dim, eps=shape.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(shape.head_dim, eps=shape.rms_norm_eps)

    def keys_values(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """K (normed, rotated) and V of ``hidden`` [R, S, H], each [R, Hkv, S, d]: what a serving KV cache holds."""
        k = self.k_norm(self._heads(self.k_proj(hidden)))
        v = self._heads(self.v_proj(hidden))
        return _rotate(k, rotary), v.transpose(1, 2)

    def queries(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        """Q of the block's ``hidden`` [R, Q, H] -> [R, Hq, Q, d]."""
        return _rotate(self.q_norm(self._heads(self.q_proj(hidden))), rotary)

    def output(self, mixed: Tensor) -> Tensor:
        """[R, Hq, Q, d] -> [R, Q, H]."""
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim))


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    """RoPE on [R, S, heads, d] -> [R, heads, S, d].

    transformers' ``apply_rotary_pos_emb`` (models/qwen3/modeling_qwen3.py) rotates queries and keys at once; here they
    have other positions, and a second result that nobody uses is a sixth of what Dynamo traces at every start.
    """
    heads = heads.transpose(1, 2)
    cos, sin = rotary
    return heads * cos.unsqueeze(1) + rotate_half(heads) * sin.unsqueeze(1)


class DrafterLayer(nn.Module):
    """Pre-norm Qwen3 layer; ``context`` enters as keys and values only."""

    def __init__(self, shape: DrafterShape, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(shape)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def forward(
        self, hidden: Tensor, context_kv: tuple[Tensor, Tensor], block_rotary: Rotary, plan: AttentionPlan
    ) -> Tensor:
        """hidden [R, Q, H], context K/V [R, Hkv, T, d] each -> [R, Q, H]."""
        normed = self.input_layernorm(hidden)
        block_k, block_v = self.self_attn.keys_values(normed, block_rotary)
        k = torch.cat([context_kv[0], block_k], dim=2)
        v = torch.cat([context_kv[1], block_v], dim=2)
        mixed = attend(self.self_attn.queries(normed, block_rotary), k, v, plan)
        hidden = hidden + self.self_attn.output(mixed)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Drafter(nn.Module):
    """All layers over one fused context."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        config = shape.qwen3_config()
        self.shape = shape
        self.fc = nn.Linear(len(shape.target_layer_ids) * shape.target_hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(shape, config) for _ in range(shape.num_layers))
        self.norm = Qwen3RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)  # its buffers are not persistent: no tensor in a checkpoint

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Normal(0, 0.02) for matrices, ones for norms: a pure function of the generator, on the CPU.

        0.02 is Qwen3's ``initializer_range``.
        """
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, 0.02, generator=generator)

    def context_keys_values(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """K/V of context ``features`` [R, S, N*D] at ``positions`` [R, S] for every layer, [R, Hkv, S, d] each."""
        fused = self.hidden_norm(self.fc(features))
        rotary = self.rotary_emb(fused, positions)
        return [layer.self_attn.keys_values(fused, rotary) for layer in self.layers]

    def forward(
        self,
        context_kv: Sequence[tuple[Tensor, Tensor]],
        block_embeddings: Tensor,
        block_positions: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        """Block hidden states [R, Q, H], after the final norm."""
        rotary = self.rotary_emb(block_embeddings, block_positions)
        hidden = block_embeddings
        for layer, kv in zip(self.layers, context_kv, strict=True):
            hidden = layer(hidden, kv, rotary, plan)
        return self.norm(hidden)
