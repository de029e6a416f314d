"""What a run would need: graphs, parameters and disk, from the configuration and the target's files alone.

In: a configuration. Out: lines for ``dflash train --dry-run``. Loads the target (mmap; of a GGUF file that is not
converted its configuration only) and the data, runs and writes nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from dflash.compile.shapes import needed_graphs
from dflash.config import Config
from dflash.data import pack
from dflash.devices import pick_device, target_dtype
from dflash.drafter import Drafter
from dflash.features import cache_bytes
from dflash.paths import targets_dir
from dflash.target import load_target, locate_target, read_gguf_config, unconverted
from dflash.train import attention_kind, drafter_shape, read_documents

STATE_BYTES = 12  # a parameter in a checkpoint: float32 master and two float32 moments


def describe(config: Config) -> list[str]:
    """Lines: data, drafter, graphs to compile, disk needed."""
    device = pick_device(config.run.device)
    wanted, vocab_size, convert_bytes = _look_at_target(config.target.model)
    shape = drafter_shape(config, wanted, vocab_size)
    prepared, documents = read_documents(config)
    rows, left_out = pack(documents, config.data.row_tokens)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Drafter(shape).parameters())
    graphs = needed_graphs(config, [device.type], attention=attention_kind(config, device))
    feature_bytes = cache_bytes(
        rows, len(shape.target_layer_ids) * shape.target_hidden_size, target_dtype(config.target.dtype, device)
    )
    checkpoint_bytes = parameters * STATE_BYTES
    kept = min(config.run.keep_checkpoints + 1, -(-config.run.steps // config.run.checkpoint_every))
    cached = config.target.features == "cached"
    return [
        f"data: {len(documents)} documents in {len(rows)} rows, {prepared.skipped_short + left_out} samples left out",
        f"drafter: {parameters / 1e6:.1f} M parameters, taps {list(shape.target_layer_ids)} of "
        f"{shape.num_target_layers} target layers",
        f"graphs to compile: {len(graphs)} ({'; '.join(graph.name for graph in graphs)})"
        if graphs
        else "graphs to compile: none",
        f"disk needed: {checkpoint_bytes * kept / 2**20:.0f} MiB for checkpoints, "
        f"{(feature_bytes if cached else 0) / 2**20:.0f} MiB for cached features"
        + (f", {convert_bytes / 2**20:.0f} MiB for the converted target, in {targets_dir()}" if convert_bytes else ""),
    ]


def _look_at_target(model: str) -> tuple[Any, int, int]:
    """Its configuration, its vocabulary, and the bytes that converting it will write."""
    if gguf := unconverted(model):
        from transformers import AutoModelForCausalLM

        config = read_gguf_config(gguf)
        with torch.device("meta"):
            weights = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        return config, config.vocab_size, sum(p.nbytes for p in weights.parameters())
    target = load_target(locate_target(model), device=torch.device("cpu"), dtype=torch.float32)
    return target.config, target.vocab_size, 0
