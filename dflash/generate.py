"""``dflash data generate``: the target's own greedy responses to prompts.

In: samples with prompts. Out: the same samples with response, response_ids and finish, appended to a JSONL file in
input order. Resumable: ids already in the file are skipped, a half-written line is cut. DFlash trains on the target's
own text (arXiv 2602.06036, sec. 5), so that the data token is the target's argmax.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from dflash.chat import prompt_ids
from dflash.console import say, stage
from dflash.errors import InputError
from dflash.jsonl import Sample, cut_partial_line, dump_sample, parse_samples, read_samples
from dflash.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateResult:
    """What one call did."""

    written: int
    already_there: int
    tokens: int
    seconds: float


def generate_file(
    target: Target, samples: Sequence[Sample], out: Path, *, batch_size: int, max_new_tokens: int
) -> GenerateResult:
    """Append responses for every sample that ``out`` does not hold yet; durable after each batch.

    Raises:
        InputError: ``out`` holds other prompts under the same ids, or another process is writing it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and not out.is_file():
        raise InputError(f"{out}: not a regular file; choose another output file")
    try:
        with FileLock(f"{out}.lock", timeout=0):
            return _generate_locked(target, samples, out, batch_size, max_new_tokens)
    except Timeout:
        raise InputError(f"{out}: another `dflash data generate` is writing it") from None


def _generate_locked(
    target: Target, samples: Sequence[Sample], out: Path, batch_size: int, max_new_tokens: int
) -> GenerateResult:
    done: dict[str, Sample] = {}
    if out.exists():
        done = _responses_in(out)
    for sample in samples:
        if sample.id in done and done[sample.id].prompt != sample.prompt:
            raise InputError(f"{out}: already holds id {sample.id!r} with another prompt; choose another output file")
    todo = [sample for sample in samples if sample.id not in done]
    started, tokens = time.monotonic(), 0
    batches = [todo[i : i + batch_size] for i in range(0, len(todo), batch_size)]
    with (
        stage(f"generate {len(todo)} responses", steps=len(batches)) as advance,
        out.open("a", encoding="utf-8") as sink,
    ):
        for batch in batches:
            answered = generate_batch(target, batch, max_new_tokens=max_new_tokens)
            sink.writelines(dump_sample(sample) + "\n" for sample in answered)
            sink.flush()
            os.fsync(sink.fileno())
            tokens += sum(len(sample.response_ids or ()) for sample in answered)
            advance()
    seconds = time.monotonic() - started
    if todo:
        say(f"generated {tokens} tokens, {tokens / seconds:.0f} tokens/s; {len(done)} responses were there before")
    return GenerateResult(written=len(todo), already_there=len(samples) - len(todo), tokens=tokens, seconds=seconds)


def _responses_in(out: Path) -> dict[str, Sample]:
    """What an earlier call wrote; nothing of the file is touched unless all of it is responses."""
    complete, newline, _ = out.read_bytes().rpartition(b"\n")
    if newline:
        foreign = next((s for s in parse_samples(out, complete) if s.response_ids is None), None)
        if foreign is not None:
            raise InputError(f"{out}: sample {foreign.id!r} has no response_ids, so this is no output of generate")
    cut_partial_line(out)
    return {sample.id: sample for sample in read_samples(out)} if out.stat().st_size else {}


@torch.no_grad()
def generate_batch(target: Target, batch: Sequence[Sample], *, max_new_tokens: int) -> list[Sample]:
    """Greedy responses to one batch, left-padded; a response keeps its end token."""
    prompts = [prompt_ids(target.tokenizer, sample.prompt) for sample in batch]
    width = max(map(len, prompts))
    eos = target.eos_token_ids
    pad = min(eos)
    tokens = torch.tensor([[pad] * (width - len(ids)) + ids for ids in prompts], device=target.device)
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=target.device)
    written = target.model.generate(
        input_ids=tokens,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(eos),
        pad_token_id=pad,
    )
    return [_answer(target, sample, row, eos) for sample, row in zip(batch, written[:, width:].tolist(), strict=True)]


def _answer(target: Target, sample: Sample, ids: list[int], eos: frozenset[int]) -> Sample:
    end = next((i for i, token in enumerate(ids) if token in eos), None)
    kept = ids if end is None else ids[: end + 1]
    text = target.tokenizer.decode(kept, skip_special_tokens=True)
    return replace(sample, response=text, response_ids=tuple(kept), finish="length" if end is None else "stop")
