"""Flex attention tried on every GPU: right, sparse and stable. CMP024, seconds a device, for ``dflash preflight``.

In: the visible CUDA devices. Out: a ``Preflight``. Each device compiles causal flex attention, forward and backward,
in bfloat16; the result is compared with SDPA in float32, the peak memory with the size of the score matrix that the
dense path would build, and a second call must compile nothing. Needs nothing of the GPU but a few hundred MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from dflash.compile.compiled import compile_function
from dflash.compile.dense import flex_or_die
from dflash.compile.kernels import KernelChoice, choose
from dflash.compile.preflight import Preflight
from envguard.findings import Check, Problem, run_checks

HEADS, TOKENS, HEAD_DIM = 8, 4096, 64
TOLERANCE = 0.01
"""Relative error of bfloat16 against float32; measured 0.002 on an H200."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlexOnDevice:
    """What one device did."""

    device: str
    relative_error: float
    """Of output and gradients, the larger."""
    peak_bytes: int
    """Above what was allocated before the call."""
    dense_bytes: int
    """The score matrix of the dense path, in the tensors' own dtype."""
    new_graphs: int
    """Compiled by a second call with other values."""
    kernel: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FlexFailed:
    """What stopped one device."""

    device: str
    error: str


def try_flex(device: torch.device, tokens: int = TOKENS) -> FlexOnDevice:
    """Compile, run, measure on one device."""
    generator = torch.Generator(device).manual_seed(0)

    def tensors() -> list[Tensor]:
        shape = (1, HEADS, tokens, HEAD_DIM)
        made = [torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator) for _ in range(3)]
        return [tensor.requires_grad_() for tensor in made]

    def causal(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return q >= kv

    mask = create_block_mask(causal, 1, None, tokens, tokens, device=device)
    compiled = compile_function(flex_or_die)
    leaves = tensors()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)

    def attempt(kernel: KernelChoice) -> Tensor:
        out = compiled(*leaves, block_mask=mask, kernel_options=kernel.as_dict())
        torch.autograd.backward(out.sum())
        torch.cuda.synchronize(device)
        return out

    out, chosen = choose(attempt)
    peak = torch.cuda.max_memory_allocated(device) - before
    exact = [leaf.detach().float().requires_grad_() for leaf in leaves]
    q, k, v = exact
    reference = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.autograd.backward(reference.sum())
    pairs = [(out, reference), *((leaf.grad, slow.grad) for leaf, slow in zip(leaves, exact, strict=True))]
    frames = counters["stats"]["unique_graphs"]
    leaves = tensors()
    attempt(chosen.choice)
    return FlexOnDevice(
        device=str(device),
        relative_error=max(relative_error(a, b) for a, b in pairs),
        peak_bytes=peak,
        dense_bytes=HEADS * tokens * tokens * 2,
        new_graphs=counters["stats"]["unique_graphs"] - frames,
        kernel=chosen.choice.name,
    )


def relative_error(a: Tensor | None, b: Tensor | None) -> float:
    """|a - b| / |b| in float32."""
    assert a is not None
    assert b is not None
    a, b = a.detach().float(), b.detach().float()
    return float((a - b).norm() / b.norm())


def check_gpus() -> Preflight:
    """Try every visible device, one after the other."""
    seen = [_try(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    findings = tuple(finding for each in seen for finding in run_checks(CHECKS, each))
    return Preflight(
        stage="flex attention on every visible GPU",
        torch=torch.__version__,
        findings=findings,
        handled=(),
        absent=(),
        repaired=(),
    )


def _try(device: torch.device) -> FlexOnDevice | FlexFailed:
    """A device that cannot is a result too: an assembler, a driver, memory that others hold."""
    try:
        return try_flex(device)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return FlexFailed(device=str(device), error=f"{type(error).__name__}: {first}")


def _flex(seen: FlexOnDevice | FlexFailed) -> Iterable[Problem]:
    if isinstance(seen, FlexFailed):
        yield Problem(subject=seen.device, message=f"{seen.device}: compiled flex attention does not run: {seen.error}")
        return
    if not seen.relative_error < TOLERANCE:  # NaN fails too
        yield Problem(
            subject=seen.device,
            message=f"{seen.device}: compiled flex attention is {seen.relative_error:.3g} off the reference",
            expected=f"< {TOLERANCE}",
            observed=f"{seen.relative_error:.3g}",
        )
    if seen.peak_bytes >= seen.dense_bytes:
        yield Problem(
            subject=seen.device,
            message=f"{seen.device}: flex attention took {seen.peak_bytes >> 20} MiB, as much as the dense path's "
            f"{seen.dense_bytes >> 20} MiB",
            expected=f"< {seen.dense_bytes}",
            observed=str(seen.peak_bytes),
        )
    if seen.new_graphs:
        yield Problem(
            subject=seen.device, message=f"{seen.device}: a second call compiled {seen.new_graphs} new graphs"
        )


CHECKS: tuple[Check[FlexOnDevice | FlexFailed], ...] = (
    Check(
        id="CMP024",
        summary="compiled flex attention on each GPU is right, sparse and compiled once",
        why="A wrong assembler, a driver that is too old, or a silent dense fallback show only on the device.",
        fix="check the driver and triton (dflash doctor); set drafter.attention = sdpa meanwhile",
        run=_flex,
    ),
)
