"""What only a process with torch knows of its compile keys: digests of its settings, and where autocast was on.

In: this process, in which torch has been imported and has compiled. Out: values for the told inputs of a fingerprint.
It imports nothing: a program without torch has nothing to tell. The functions that torch hashes into its keys are
``FxGraphHashDetails`` (``_inductor/codecache.py``) and ``AOTAutogradCacheDetails`` of torch 2.11.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from typing import Any

from envguard.errors import UsageError

NO_AUTOCAST = "off"


def tell(autocasts: Iterable[str | None]) -> dict[str, str | None]:
    """The told values of this process; ``autocasts``: of each graph that was compiled or hit, None where it was off.

    Raises:
        UsageError: torch has compiled nothing in this process.
    """
    torch: Any = sys.modules.get("torch")
    codecache: Any = sys.modules.get("torch._inductor.codecache")
    if torch is None or codecache is None:
        raise UsageError("torch has compiled nothing in this process: call this after the first compiled call")
    inductor: dict[str, object] = torch._inductor.config.save_config_portable(ignore_private_configs=False)
    functorch: dict[str, object] = torch._functorch.config.save_config_portable()
    matmul = torch.backends.cuda.matmul
    precision = (
        matmul.fp32_precision,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
    )
    return {
        "torch_key": codecache.torch_key().hex()[:16],
        "autocast": describe_autocast(autocasts),
        "inductor_config": _digest(inductor),
        "functorch_config": _digest(functorch),
        "precision": " ".join(map(str, precision)),
    }


def describe_autocast(autocasts: Iterable[str | None]) -> str:
    """One text for a set of ``device dtype``: ``off``, or ``cpu bfloat16; cuda float16``."""
    return "; ".join(sorted({one or NO_AUTOCAST for one in autocasts} - {NO_AUTOCAST})) or NO_AUTOCAST


def ambient_autocast() -> str | None:
    """Where autocast is on in this thread, such as ``cpu bfloat16``; None where it is off or torch is not imported."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    devices = ("cpu", torch.accelerator.current_accelerator().type) if torch.accelerator.is_available() else ("cpu",)
    on = [
        f"{device} {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
        for device in devices
        if torch.is_autocast_enabled(device)
    ]
    return "; ".join(on) or None


def functorch_options() -> dict[str, str]:
    """Option → text of functorch's settings; empty where torch is not imported."""
    config: Any = sys.modules.get("torch._functorch.config")
    if config is None:
        return {}
    return {name: repr(_stable(value)) for name, value in config.save_config_portable().items()}


def _digest(config: dict[str, object]) -> str:
    text = "\n".join(f"{name}={_stable(value)!r}" for name, value in sorted(config.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stable(value: object) -> object:
    """``value`` with a text that is the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return getattr(value, "__qualname__", value) if callable(value) else value
