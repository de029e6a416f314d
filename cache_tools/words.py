"""The components of torch's cache keys in words.

In: names such as ``inductor_config[max_autotune]`` as torch 2.11 writes them (attributes of ``FxGraphHashDetails`` and
``AOTAutogradCacheDetails``). Out: what a person calls them, and a sentence about those that differ. It compares
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_VALUE = 80
"""Characters of a value in a sentence."""
IMPORT_ORDER = (
    "the program was started in another way or imports modules in another order: the inputs are the same, and torch "
    "2.11 hashes the name of the module that imported torch first; cache_tools.stable_keys() ends that, once the "
    "snapshot too is of a program that calls it"
)
_PART = re.compile(r", (?=\w+=)")
SHOWN = 3
"""Differences that a sentence spells out."""
_OF_THE_GRAPH = frozenset({"gm", "example_inputs", "fx_kwargs", "aot_config", "inputs_to_check"}) | frozenset(
    ("user_defined_triton_source", "triton_kernel_source_codes", "saved_tensors_hooks_fx_wrap_cache_hashes")
)
_NAMES = {
    "gm": "the graph itself (the model's code, or what was traced)",
    "example_inputs": "shape, stride, dtype or device of an input",
    "aot_config": "the names or sources of the arguments",
    "torch_version": "torch itself (its version, or one of its source files)",
    "system_info": "the GPU, CUDA or triton",
    "cache_key_tag": "the cache key tag",
    "grad_enabled": "whether gradients are on",
    "disable_amp": "whether autocast is on",
    "autograd_config": "functorch config",
    "cuda_matmul_settings": "the precision of CUDA matrix products",
    "deterministic_algorithms": "deterministic mode",
    "deterministic_algorithms_settings": "deterministic mode",
    "user_defined_triton_source": "a Triton kernel of the user",
    "triton_kernel_source_codes": "a Triton kernel of a custom operator",
    "var_to_hint_override": "size hints of dynamic shapes",
}


def family(name: str) -> str:
    """``name`` without an index that says nothing: differing inputs are one reason, differing options are not."""
    base = name.partition("[")[0]
    return base if base in ("example_inputs", "system_info") else name


def is_of_the_graph(name: str) -> bool:
    """Whether a component belongs to one graph, not to the settings of the process."""
    return name.partition("[")[0] in _OF_THE_GRAPH


def describe(name: str) -> str:
    """A component as a person calls it."""
    base, _, index = name.partition("[")
    option = index.removesuffix("]")
    if base in ("inductor_config", "functorch_config"):
        return f"{base.removesuffix('_config')} config {option}"
    if base == "fx_kwargs":
        return f"the compile option {option}"
    if base == "example_inputs" and option:
        return f"{_NAMES[base]} (input {option})"
    return _NAMES.get(base, name)


def sentence(differences: Sequence[tuple[str, str | None, str | None]]) -> str:
    """``inductor config max_autotune differs (cached: False, now: True)``; the graph's own text is never shown."""
    if not differences:
        return "their keys differ in something that torch does not tell"
    if all(name.startswith("example_inputs") and cached and cached == wanted for name, cached, wanted in differences):
        return IMPORT_ORDER
    parts: dict[str, str] = {}
    for name, cached, wanted in differences:
        parts.setdefault(family(name), f"{describe(name)} differs{_values(name, cached, wanted)}")
    told = list(parts.values())
    more = f", and {len(told) - SHOWN} more components" if len(told) > SHOWN else ""
    return ", ".join(told[:SHOWN]) + more


def _values(name: str, cached: str | None, wanted: str | None) -> str:
    if name.partition("[")[0] in ("gm", "aot_config", "autograd_config", "torch_version", "system_info"):
        return ""
    before, now = _distinct(cached or "", wanted or "")
    shown = [f"{side}: {value}" for side, value in (("cached", before), ("now", now)) if value]
    return f" ({', '.join(shown)})" if shown else ""


def _distinct(cached: str, wanted: str) -> tuple[str, str]:
    """The parts ``name=value`` in which two metadata texts differ; other texts as they are, cut."""
    left, right = (_PART.split(text.removeprefix("TensorMetadata(").removesuffix(")")) for text in (cached, wanted))
    if len(left) != len(right) or len(left) == 1:
        return cached[:MAX_VALUE], wanted[:MAX_VALUE]
    differing = [(before, now) for before, now in zip(left, right, strict=True) if before != now]
    return ", ".join(before for before, _ in differing), ", ".join(now for _, now in differing)
