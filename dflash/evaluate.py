"""``dflash evaluate``: real draft-and-verify decoding against plain greedy decoding.

In: a checkpoint and prompts. Out: ``Evaluation``: whether the texts are identical, mean accepted length (mean over
prompts of per-prompt means, as z-lab ``benchmark.py``), acceptance by position, and speed against plain decoding with
the same loop, caches and device. In float32 a difference is an error of ours; in bfloat16 a block forward and a token
forward round differently, so each difference is explained: the two tokens' logits and whether they tie.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dflash.chat import prompt_ids
from dflash.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from dflash.console import stage
from dflash.decode import Decoded, decode_drafted, decode_plain
from dflash.drafter import Drafter
from dflash.errors import InputError
from dflash.jsonl import Sample
from dflash.target import Target

TIE_ULPS = 2.0  # logits this many units in the last place apart are a tie in their dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Where a drafted text first leaves the plain one."""

    id: str
    index: int
    """0-based generated token."""
    plain: int
    drafted: int
    gap: float
    """Logit of the plain token minus logit of the drafted one, after the common prefix in one forward."""
    resolution: float
    """Spacing of the dtype at those logits."""

    @property
    def is_tie(self) -> bool:
        """Within ``TIE_ULPS`` units in the last place."""
        return abs(self.gap) <= TIE_ULPS * self.resolution


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Figures of one evaluation."""

    prompts: int
    identical: int
    """Prompts whose drafted tokens equal the plain ones."""
    differences: tuple[Difference, ...]
    accepted_length: float
    accepted_by_position: tuple[float, ...]
    """Share of verify steps that accepted draft k, for k = 1 … K-1."""
    tokens: int
    tokens_per_s: float
    baseline_tokens_per_s: float
    dtype: str
    step: int
    """Training steps of the checkpoint."""

    @property
    def speedup(self) -> float:
        """Drafted over plain tokens a second."""
        return self.tokens_per_s / self.baseline_tokens_per_s

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences that are no tie."""
        return tuple(difference for difference in self.differences if not difference.is_tie)

    def document(self) -> dict[str, Any]:
        """The ``--json`` object, schema 1."""
        return {
            "schema": 1,
            "step": self.step,
            "dtype": self.dtype,
            "prompts": self.prompts,
            "identical": self.identical,
            "differences": [
                {"id": d.id, "index": d.index, "plain": d.plain, "drafted": d.drafted, "gap": d.gap, "tie": d.is_tie}
                for d in self.differences
            ],
            "accepted_length": round(self.accepted_length, 4),
            "accepted_by_position": [round(share, 4) for share in self.accepted_by_position],
            "tokens": self.tokens,
            "tokens_per_s": round(self.tokens_per_s, 2),
            "baseline_tokens_per_s": round(self.baseline_tokens_per_s, 2),
            "speedup": round(self.speedup, 3),
        }


def open_drafter(path: Path, target: Target) -> tuple[Checkpoint, Drafter]:
    """The drafter of a checkpoint (or of the newest in a run directory), on the target's device and in its dtype.

    Raises:
        InputError: no checkpoint, a damaged one, or one made for another target.
    """
    checkpoint = load_checkpoint(find_checkpoint(path))
    if checkpoint.target_fingerprint != target.files.fingerprint:
        raise InputError(f"{checkpoint.path}: made for another target than {target.files.directory}")
    drafter = Drafter(checkpoint.shape)
    try:
        drafter.load_state_dict(checkpoint.weights())
    except RuntimeError as error:
        raise InputError(f"{checkpoint.path}: its tensors do not fit its shape: {str(error).splitlines()[0]}") from None
    return checkpoint, drafter.to(device=target.device, dtype=target.embedding_weight.dtype).eval().requires_grad_(
        False
    )


def evaluate(
    target: Target, drafter: Drafter, samples: Sequence[Sample], *, max_new_tokens: int, step: int
) -> Evaluation:
    """Decode every prompt both ways, after one warm-up decode of each kind that is not counted."""
    prompts = [prompt_ids(target.tokenizer, sample.prompt) for sample in samples]
    decode_plain(target, prompts[0], max_new_tokens=4)
    decode_drafted(target, drafter, prompts[0], max_new_tokens=4)
    differences: list[Difference] = []
    drafted: list[Decoded] = []
    tokens, seconds, baseline_tokens, baseline_seconds = 0, 0.0, 0, 0.0
    with stage(f"evaluate {len(samples)} prompts", steps=len(samples)) as advance:
        for sample, prompt in zip(samples, prompts, strict=True):
            plain, plain_seconds = _timed(
                target, lambda p=prompt: decode_plain(target, p, max_new_tokens=max_new_tokens)
            )
            ours, our_seconds = _timed(
                target, lambda p=prompt: decode_drafted(target, drafter, p, max_new_tokens=max_new_tokens)
            )
            drafted.append(ours)
            tokens, seconds = tokens + len(ours.tokens), seconds + our_seconds
            baseline_tokens, baseline_seconds = baseline_tokens + len(plain.tokens), baseline_seconds + plain_seconds
            if ours.tokens != plain.tokens:
                differences.append(explain(target, sample.id, prompt, plain.tokens, ours.tokens))
            advance()
    steps = [count for response in drafted for count in response.accepted]
    return Evaluation(
        prompts=len(samples),
        identical=len(samples) - len(differences),
        differences=tuple(differences),
        accepted_length=sum(response.accepted_length for response in drafted) / len(drafted),
        accepted_by_position=tuple(
            sum(count >= k for count in steps) / max(1, len(steps)) for k in range(1, drafter.shape.block_size)
        ),
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        baseline_tokens_per_s=baseline_tokens / baseline_seconds,
        dtype=str(target.embedding_weight.dtype).removeprefix("torch."),
        step=step,
    )


def explain(
    target: Target, sample_id: str, prompt: list[int], plain: Sequence[int], drafted: Sequence[int]
) -> Difference:
    """Compare both tokens' logits where the texts part, after the common prefix in one forward."""
    index = next(
        (i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), min(len(plain), len(drafted)) - 1
    )
    prefix = torch.tensor([[*prompt, *plain[:index]]], device=target.device)
    last, _ = target.run(prefix, (), use_cache=False)
    logits = target.logits(last[0, -1])
    a, b = logits[plain[index]], logits[drafted[index]]
    magnitude = torch.maximum(a.abs(), b.abs())
    upward = torch.nextafter(magnitude, torch.full_like(magnitude, torch.inf))
    return Difference(
        id=sample_id,
        index=index,
        plain=plain[index],
        drafted=drafted[index],
        gap=float(a) - float(b),
        resolution=float(upward) - float(magnitude),
    )


def _timed(target: Target, run: Any) -> tuple[Decoded, float]:
    started = time.perf_counter()
    decoded = run()  # ends with the last token on the host, so the device has finished
    return decoded, time.perf_counter() - started
