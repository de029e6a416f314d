"""Does the GPU compute? torch in a process of its own: its architectures, a product of matrices, flex attention.

In: the judged interpreter. Out: a ``Smoke``. It takes seconds and needs a GPU; a process that dies, hangs or says
nonsense is a ``Smoke`` with its reason, since that is exactly what it was started to find out.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from envguard.frozen import Frozen

TIMEOUT = 300.0
"""Seconds; the first compilation of flex attention on a busy machine takes one of these minutes."""

_MARK = "envguard smoke: "

_PROGRAM = """
import json, traceback
told = {"available": False, "archs": [], "devices": [], "failures": {}}
def attempt(name, step):
    try:
        step()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        told["failures"][name] = f"{type(error).__name__}: {lines[0]}"
def matmul():
    ones = torch.ones(64, 64, device="cuda")
    total = (ones @ ones).sum().item()
    assert total == 64.0**3, f"the product of ones sums to {total}"
def flex():
    from torch.nn.attention.flex_attention import flex_attention
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    causal = lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf"))
    got = torch.compile(flex_attention)(q, k, v, score_mod=causal).float()
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    error = (got - want).abs().max().item()
    assert error < 0.05, f"it differs from the reference by {error:.3f}"
import torch
told["available"] = torch.cuda.is_available()
if told["available"]:
    told["archs"] = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        told["devices"].append([name, ".".join(map(str, capability))])
    attempt("matmul", matmul)
    attempt("flex attention", flex)
print("MARK" + json.dumps(told))
""".replace("MARK", _MARK)


class Smoke(Frozen):
    """What the process told."""

    available: bool
    archs: tuple[str, ...]
    """Architectures that torch holds code for, such as ``sm_90``."""
    devices: tuple[tuple[str, str], ...]
    """(name, compute capability) of every visible GPU."""
    failures: tuple[tuple[str, str], ...]
    """(what was tried, why it failed)."""


def smoke_test(python: Path, timeout: float = TIMEOUT) -> Smoke:
    """Run the trial in ``python``."""
    command = [str(python), "-c", _PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return _dead(f"it did not end within {timeout:.0f} s")
    except OSError as error:
        return _dead(f"it cannot be started ({error.strerror})")
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return _read(json.loads(line.removeprefix(_MARK)))
    last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return _dead(f"it ended with exit {done.returncode}: {last}")


def _dead(reason: str) -> Smoke:
    return Smoke(available=False, archs=(), devices=(), failures=(("torch", reason),))


def _read(told: dict[str, Any]) -> Smoke:
    return Smoke(
        available=told["available"],
        archs=tuple(told["archs"]),
        devices=tuple((name, capability) for name, capability in told["devices"]),
        failures=tuple(told["failures"].items()),
    )
