"""Every way into dense flex attention, on a GPU: refused, and before anything large is allocated.

    python benchmarks/never_dense_gpu.py [--tokens 16384] [--work DIR] [--cpu]

In: one CUDA device. Out: talk on stderr, and last on stdout one JSON line. Each cause of a fallback runs in a fork of
its own (torch is imported once, CUDA initialised in the forks), for our own attention and for a call of a library
under the tripwire, and the backward operator too. A cause holds where ``DenseAttentionError`` is met and the memory's
peak stays under the sparse path's, which is measured first (compiled forward and backward of the largest tensors).
The backward is reached by a small dense forward, so that what counts is its own growth: less than one matrix of scores.
Exit 1 where one does not hold. ``--cpu`` debugs the script; no memory is measured then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flexlab

HEADS, HEAD_DIM = 8, 64
BLOCK = 128
BACKWARD_TOKENS = 1024


class Case:
    """One fork: tensors of growing sizes and the call in question."""

    def __init__(self, who: str, tokens: int, device_type: str) -> None:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        from dflash.attention import AttentionPlan, attend
        from dflash.compile import dense

        self.tokens = tokens
        self.device = torch.device(device_type)
        self.grad = device_type == "cuda"  # a CPU has no backward of flex attention
        self.before = 0
        """Bytes on the device that do not count."""
        if who == "theirs":
            dense.install_tripwire()
            self.function: Callable[..., Any] = lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask)
        else:
            self.function = lambda q, k, v, mask: attend(q, k, v, AttentionPlan("flex", mask))

    def tensors(self, number: int = 0) -> tuple[Any, ...]:
        """q, k, v and the mask; another ``number``, another shape."""
        import torch

        tokens = self.tokens + BLOCK * number
        dtype = torch.bfloat16 if self.grad else torch.float32
        made = [
            torch.randn(1, HEADS, tokens, HEAD_DIM, device=self.device, dtype=dtype, requires_grad=self.grad)
            for _ in range(3)
        ]
        return (*made, causal_mask(tokens, self.device))

    def compiled(self, **options: Any) -> Callable[..., Any]:
        import torch

        return torch.compile(self.function, dynamic=False, **({"backend": instant} if not self.grad else {}), **options)


def causal_mask(tokens: int, device: Any) -> Any:
    """Made from block indices: ``create_block_mask`` is [T, T] itself when it runs eagerly, and a minute to compile."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    blocks = tokens // BLOCK
    counts = torch.arange(1, blocks + 1, dtype=torch.int32, device=device)
    indices = torch.arange(blocks, dtype=torch.int32, device=device).expand(blocks, blocks).contiguous()
    return BlockMask.from_kv_blocks(counts[None, None], indices[None, None], BLOCK_SIZE=BLOCK, mask_mod=flexlab.causal)


def instant(_graph: Any, _inputs: Any) -> Any:
    """A backend that builds nothing, for the CPU."""
    import torch

    return lambda *given: (torch.zeros(1),)


def nothing_compiled(case: Case) -> Any:
    return case.function(*case.tensors())


def limit_hit(case: Case) -> Any:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1
    call = case.compiled()
    call(*case.tensors(0))
    call(*case.tensors(1))
    return call(*case.tensors(2))


def nested_trace(case: Case) -> Any:
    import torch._dynamo

    torch._dynamo.config.error_on_nested_fx_trace = False
    return nested_trace_seen(case)


def force_eager(case: Case) -> Any:
    import torch

    given = case.tensors()
    torch.compiler.set_stance("force_eager")
    return case.compiled(fullgraph=True)(*given)


def eager_on_recompile(case: Case) -> Any:
    import torch

    call, other = case.compiled(fullgraph=True), case.tensors(1)
    call(*case.tensors())
    torch.compiler.set_stance("eager_on_recompile")
    return call(*other)


def suppressed(case: Case) -> Any:
    import torch._dynamo

    def fails(_graph: Any, _inputs: Any) -> Any:
        raise RuntimeError("this backend fails")

    given = case.tensors()
    torch._dynamo.config.suppress_errors = True
    import torch

    return torch.compile(case.function, dynamic=False, backend=fails)(*given)


def disabled(case: Case) -> Any:
    import torch._dynamo

    given = case.tensors()
    torch._dynamo.config.disable = True
    return case.compiled(fullgraph=True)(*given)


def eager_backend(case: Case) -> Any:
    import torch

    return torch.compile(case.function, dynamic=False, backend="aot_eager")(*case.tensors())


def nested_trace_seen(case: Case) -> Any:
    import torch.fx._symbolic_trace as tracing

    call, given = case.compiled(), case.tensors()
    if hasattr(tracing, "_set_is_fx_tracing"):
        tracing._set_is_fx_tracing(True)
    else:
        tracing._is_fx_tracing_flag = True
    return call(*given)


def dispatch_mode(case: Case) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            return function(*given, **(named or {}))

    given = case.tensors()
    with Mode():
        return case.compiled()(*given)


CAUSES: dict[str, Callable[[Case], Any]] = {
    "no torch.compile at all": nothing_compiled,
    "recompile limit": limit_hit,
    "hidden nested trace": nested_trace,
    "stance force_eager": force_eager,
    "stance eager_on_recompile": eager_on_recompile,
    "suppressed errors": suppressed,
    "disabled": disabled,
}
TORCH_REFUSES: dict[str, tuple[Callable[[Case], Any], str]] = {
    "nested trace": (nested_trace_seen, "symbolically trace a dynamo-optimized function"),
    "dispatch mode": (dispatch_mode, "NotImplementedError"),
}
"""Causes that torch meets with an error of its own, and a part of its words."""
FOR_THE_TRIPWIRE: dict[str, Callable[[Case], Any]] = {"backend that runs graphs eagerly": eager_backend}


def sparse(case: Case) -> Any:
    """The path that should be taken: compiled forward and backward."""
    out = case.compiled(fullgraph=True)(*case.tensors(2))  # the largest shape of any case
    if case.grad:
        out.sum().backward()
    return out


def dense_backward(case: Case) -> Any:
    """The backward of an eager forward that had got through (the tripwire comes between)."""
    import torch

    from dflash.compile import dense

    if not case.grad:
        sys.modules["torch.nn.attention.flex_attention"]._validate_device = lambda *_given: None
        case.grad = True
    dense.remove_tripwire()  # the dense forward is wanted here, so a small one
    from torch.nn.attention.flex_attention import flex_attention

    shape = 1, HEADS, BACKWARD_TOKENS, HEAD_DIM
    out = flex_attention(*(torch.randn(shape, device=case.device, requires_grad=True) for _ in range(3)))
    dense.install_tripwire()
    if case.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        case.before = torch.cuda.memory_allocated()
    out.sum().backward()
    return out


def in_fork(
    name: str, who: str, call: Callable[[Case], Any], tokens: int, device_type: str, words: str = ""
) -> dict[str, Any]:
    """Run one cause in a fork and say what it met and the peak of the memory; an error with ``words`` is a refusal."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            result = meet(who, call, tokens, device_type, words)
        except BaseException as error:
            result = {"met": f"{type(error).__name__}: {error}"[:300]}
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    result = json.loads(told) if told else {"met": "the process died"}
    flexlab.say(f"{name}, {who}: {json.dumps(result)}")
    return {"name": name, "who": who, **result}


def meet(who: str, call: Callable[[Case], Any], tokens: int, device_type: str, words: str) -> dict[str, Any]:
    import torch

    from dflash.compile.dense import DenseAttentionError

    case = Case(who, tokens, device_type)
    met = "ran"
    try:
        with torch.set_grad_enabled(device_type == "cuda" or call is dense_backward):
            call(case)
    except Exception as error:
        chain: list[BaseException] = [error]
        while following := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(following)
        refused = any(isinstance(each, DenseAttentionError) for each in chain)
        refused = refused or bool(words and any(words in f"{type(each).__name__}: {each}" for each in chain))
        met = "refused" if refused else f"{type(error).__name__}: {error}"[:300]
    if device_type == "cpu":
        return {"met": met, "peak_mib": 0.0}
    torch.cuda.synchronize()
    return {"met": met, "peak_mib": round((torch.cuda.max_memory_allocated() - case.before) / 2**20, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="default: 16384, on a CPU 128")
    parser.add_argument("--work", type=Path, help="directory for the cache (default: a temporary one)")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    device_type = "cpu" if options.cpu else "cuda"
    tokens = options.tokens or (128 if options.cpu else 16_384)
    with flexlab.scratch(options.work) as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
        # Everything that the forks need, CUDA apart: a process that has initialised it cannot fork.
        import dflash.attention  # noqa: F401

        path = in_fork("the sparse path", "ours", sparse, tokens, device_type)
        cases = [
            in_fork(name, who, call, tokens, device_type) for name, call in CAUSES.items() for who in ("ours", "theirs")
        ]
        cases += [in_fork(name, "theirs", call, tokens, device_type) for name, call in FOR_THE_TRIPWIRE.items()]
        cases += [
            in_fork(name, who, call, tokens, device_type, words)
            for name, (call, words) in TORCH_REFUSES.items()
            for who in ("ours", "theirs")
        ]
        cases.append(in_fork("backward of a dense forward", "theirs", dense_backward, tokens, device_type))
    dense_mib = HEADS * tokens * tokens * 2 / 2**20
    backward_limit = HEADS * BACKWARD_TOKENS * BACKWARD_TOKENS * 4 / 2**20
    for case in cases:
        limit = backward_limit if case["name"].startswith("backward") else path.get("peak_mib", 0.0)
        case["holds"] = case["met"] == "refused" and case["peak_mib"] <= limit
    holds = path["met"] == "ran" and all(case["holds"] for case in cases)
    print(
        json.dumps(
            {"schema": 1, "tokens": tokens, "dense_mib": dense_mib, "sparse": path, "cases": cases, "holds": holds}
        )
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
