"""Device and dtype choices, in one place: "auto" means CUDA in bfloat16 where there is a GPU, else CPU in float32."""

from __future__ import annotations

import torch

from dflash.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """Resolve auto, cpu or cuda.

    Raises:
        ConfigError: another name, or cuda where torch sees no GPU.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device {name!r}: allowed are auto, cpu, cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device cuda: torch sees no GPU here; run `dflash doctor`, or use device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def target_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolve auto, float32 or bfloat16.

    Raises:
        ConfigError: another name.
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in known:
        raise ConfigError(f"dtype {name!r}: allowed are auto, {', '.join(known)}")
    return known[name]
