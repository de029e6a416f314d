"""``dflash export``: the serving layout that vLLM and SGLang load.

In: a checkpoint. Out: a directory with ``model.safetensors`` (bfloat16, 11 tensors a layer and 3 more, no prefix) and
``config.json`` (z-lab's fields; block_size both at the top and inside dflash_config, since servers read either). The
only change to a number is the cast. Loader facts: vLLM ``models/qwen3_dflash.py``, SGLang ``models/dflash.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dflash.checkpoint import Checkpoint, write_tensors
from dflash.drafter import Drafter, DrafterShape
from dflash.errors import InputError
from envguard.atomic import new_directory


def export(checkpoint: Checkpoint, out: Path, *, bos_token_id: int | None, eos_token_id: int | None) -> int:
    """Write ``out``; returns the number of tensors.

    Raises:
        InputError: ``out`` exists.
    """
    if out.exists():
        raise InputError(f"{out}: exists; choose another directory or delete it")
    out.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in checkpoint.weights().items()}
    config = serving_config(checkpoint.shape, bos_token_id=bos_token_id, eos_token_id=eos_token_id)
    with new_directory(out) as temp:
        write_tensors(tensors, temp / "model.safetensors", {"format": "pt"})
        (temp / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return len(tensors)


def serving_config(shape: DrafterShape, *, bos_token_id: int | None, eos_token_id: int | None) -> dict[str, Any]:
    """``config.json``, field by field what z-lab's released drafters carry."""
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "block_size": shape.block_size,
        "num_target_layers": shape.num_target_layers,
        "dflash_config": {
            "block_size": shape.block_size,
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * shape.num_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": shape.num_layers,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "dtype": "bfloat16",
        "use_cache": True,
    }


def load_export(directory: Path, *, target_hidden_size: int) -> tuple[Drafter, dict[str, Tensor]]:
    """Rebuild the drafter from the two files alone, as a server does.

    Raises:
        InputError: a file is missing or damaged, or a tensor is missing, unexpected or of another shape.
    """
    try:
        config = json.loads((directory / "config.json").read_text())
        tensors = load_file(directory / "model.safetensors")
        dflash = config["dflash_config"]
        shape = DrafterShape(
            num_layers=config["num_hidden_layers"],
            block_size=config["block_size"],
            mask_token_id=dflash["mask_token_id"],
            target_layer_ids=tuple(dflash["target_layer_ids"]),
            num_target_layers=config["num_target_layers"],
            target_hidden_size=target_hidden_size,
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            vocab_size=config["vocab_size"],
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
            max_position_embeddings=config["max_position_embeddings"],
        )
        drafter = Drafter(shape).to(torch.bfloat16)
        drafter.load_state_dict(tensors)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{directory}: not a complete export: {str(error).splitlines()[0]}") from None
    return drafter, tensors
