"""Decoding with the target alone and with draft-and-verify; both greedy, both with KV caches, one loop each.

In: a target, a drafter, prompt ids. Out: the emitted ids and how many each verify step emitted. The drafter sees what a
server would give it: cached context K/V of all tokens before the anchor, the anchor's token, mask tokens (z-lab
``dflash/model.py`` dflash_generate). Block K/V are never cached. Batch size is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import DynamicCache

from dflash.attention import AttentionPlan
from dflash.drafter import Drafter
from dflash.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """One response."""

    tokens: tuple[int, ...]
    """Emitted ids, the end token included."""
    emitted: tuple[int, ...]
    """Tokens emitted by each verify step (accepted + 1, cut at the end of the text); empty for plain decoding."""
    accepted: tuple[int, ...]
    """Drafted tokens that the target confirmed in each verify step, 0 … K-1."""

    @property
    def accepted_length(self) -> float:
        """Mean tokens a verify step."""
        return sum(self.emitted) / len(self.emitted) if self.emitted else 1.0


class DraftContext:
    """The drafter's cached context K/V, grown as the target confirms tokens."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.length = 0
        self._keys_values: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def extend(self, features: Tensor) -> None:
        """Add features [1, S, N*D] of the next S tokens."""
        count = features.shape[1]
        positions = torch.arange(self.length, self.length + count, device=features.device)[None]
        new = self.drafter.context_keys_values(features.to(self.drafter.fc.weight.dtype), positions)
        if self._keys_values:
            new = [
                (torch.cat([k, new_k], dim=2), torch.cat([v, new_v], dim=2))
                for (k, v), (new_k, new_v) in zip(self._keys_values, new, strict=True)
            ]
        self._keys_values = new
        self.length += count

    @torch.no_grad()
    def draft_logits(self, anchor_token: int, embedding_weight: Tensor, head_weight: Tensor) -> Tensor:
        """Logits [K-1, V] for the tokens after the anchor, which is at position ``length``."""
        shape = self.drafter.shape
        dtype = self.drafter.fc.weight.dtype
        device = embedding_weight.device
        block = torch.full((1, shape.block_size), shape.mask_token_id, device=device)
        block[0, 0] = anchor_token
        positions = torch.arange(self.length, self.length + shape.block_size, device=device)[None]
        seen = torch.ones(1, 1, shape.block_size, self.length + shape.block_size, dtype=torch.bool, device=device)
        hidden = self.drafter(
            self._keys_values, embedding(block, embedding_weight).to(dtype), positions, AttentionPlan("sdpa", seen)
        )
        return (hidden[0, 1:] @ head_weight.to(dtype).T).float()


@torch.no_grad()
def decode_plain(target: Target, prompt: list[int], *, max_new_tokens: int) -> Decoded:
    """The target alone, one token a forward."""
    eos = target.eos_token_ids
    cache = DynamicCache(config=target.config)
    tokens: list[int] = []
    feed = torch.tensor([prompt], device=target.device)
    while len(tokens) < max_new_tokens:
        last, _ = target.run(feed, (), past_key_values=cache, use_cache=True)
        token = int(target.logits(last[:, -1]).argmax())
        tokens.append(token)
        if token in eos:
            break
        feed = torch.tensor([[token]], device=target.device)
    return Decoded(tokens=tuple(tokens), emitted=(), accepted=())


@torch.no_grad()
def decode_drafted(target: Target, drafter: Drafter, prompt: list[int], *, max_new_tokens: int) -> Decoded:
    """Draft a block, verify it with one target forward, keep the confirmed prefix and the target's next token."""
    eos = target.eos_token_ids
    taps = drafter.shape.target_layer_ids
    cache = DynamicCache(config=target.config)
    context = DraftContext(drafter)
    last, features = target.run(
        torch.tensor([prompt], device=target.device), taps, past_key_values=cache, use_cache=True
    )
    context.extend(features)
    tokens = [int(target.logits(last[:, -1]).argmax())]
    emitted: list[int] = []
    accepted: list[int] = []
    while len(tokens) < max_new_tokens and tokens[-1] not in eos:
        anchor = tokens[-1]
        drafts = context.draft_logits(anchor, target.embedding_weight, target.head_weight).argmax(-1)
        block = torch.cat([torch.tensor([anchor], device=target.device), drafts])[None]
        last, features = target.run(block, taps, past_key_values=cache, use_cache=True)
        confirmed = target.logits(last[0]).argmax(-1)  # [K]: the target's token after each block token
        count = int((drafts == confirmed[:-1]).long().cumprod(0).sum())
        cache.crop(context.length + 1 + count)
        context.extend(features[:, : 1 + count])
        new = cut([*drafts[:count].tolist(), int(confirmed[count])], eos, max_new_tokens - len(tokens))
        tokens += new
        emitted.append(len(new))
        accepted.append(count)
    return Decoded(tokens=tuple(tokens), emitted=tuple(emitted), accepted=tuple(accepted))


def cut(tokens: list[int], eos: frozenset[int], room: int) -> list[int]:
    """Up to the first end token, and at most ``room``."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[: min(end, room)]
