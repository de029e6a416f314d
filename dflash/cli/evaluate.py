"""``dflash evaluate`` and ``dflash export``: thin; the work is in ``dflash.evaluate`` and ``dflash.export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

CheckpointPath = Annotated[Path, typer.Argument(help="A checkpoint directory, or a run directory (its newest).")]


def evaluate(
    checkpoint: CheckpointPath,
    prompts: Annotated[Path, typer.Option("--prompts", help="JSONL with id and prompt.")],
    target: Annotated[str, typer.Option("--target", help="Overrides the target named in the checkpoint.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response in tokens.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 is lossless; bfloat16 differences are explained.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Decode with draft-and-verify and with plain greedy; accepted length, losslessness, speed."""
    from dflash.jsonl import read_samples

    samples = read_samples(prompts)  # before the slow imports: a wrong file is told at once
    from dflash.console import quiet_libraries
    from dflash.interrupts import ending_at_once

    with ending_at_once():
        quiet_libraries()
        import torch

        from dflash.checkpoint import find_checkpoint, load_checkpoint
        from dflash.devices import pick_device, target_dtype
        from dflash.errors import RunError
        from dflash.evaluate import evaluate as run
        from dflash.evaluate import open_drafter
        from dflash.target import load_target, locate_target

    torch.set_float32_matmul_precision("highest")
    where = pick_device(device)
    named = target or load_checkpoint(find_checkpoint(checkpoint)).target_model
    model = load_target(locate_target(named), device=where, dtype=target_dtype(dtype, where))
    opened, drafter = open_drafter(checkpoint, model)
    result = run(model, drafter, samples, max_new_tokens=max_new_tokens, step=opened.step)
    if as_json:
        print(json.dumps(result.document()))
    else:
        shares = " ".join(f"{share:.2f}" for share in result.accepted_by_position)
        print(
            f"prompts                {result.prompts}, {result.identical} identical to plain decoding ({result.dtype})"
        )
        print(f"accepted length        {result.accepted_length:.3f} tokens a verify step (mean over prompts)")
        print(f"accepted by position   {shares}")
        print(
            f"speed                  {result.tokens_per_s:.1f} tokens/s, plain {result.baseline_tokens_per_s:.1f}, "
            f"ratio {result.speedup:.2f}"
        )
    if result.unexplained:
        first = result.unexplained[0]
        raise RunError(
            f"{len(result.unexplained)} of {result.prompts} texts differ from plain decoding and are no ties "
            f"(first: {first.id}, token {first.index}, logits {first.gap:.3g} apart)"
        )


def export(
    checkpoint: CheckpointPath,
    out: Annotated[Path, typer.Argument(help="New directory.")],
) -> None:
    """Write the layout that vLLM and SGLang load."""
    from dflash.console import quiet_libraries, say
    from dflash.interrupts import ending_at_once

    with ending_at_once():
        quiet_libraries()
        from dflash.checkpoint import find_checkpoint, load_checkpoint
        from dflash.export import export as write
        from dflash.target import first_id, locate_target, read_text_config

    opened = load_checkpoint(find_checkpoint(checkpoint))
    config = read_text_config(locate_target(opened.target_model))
    count = write(opened, out, bos_token_id=first_id(config.bos_token_id), eos_token_id=first_id(config.eos_token_id))
    say(f"{out}: {count} tensors of step {opened.step}")
