"""What the compile benchmarks share: a small attention step, its float32 reference, child processes, cache listings.

On CUDA the step is compiled flex attention, causal, bfloat16; on a CPU, which has no backward of flex attention, SDPA
through a backend that builds nothing: enough to debug a script, nothing to measure. Not run by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

HEADS, HEAD_DIM = 8, 64
TOLERANCE = 0.01
"""Relative error of bfloat16 flex attention against float32 SDPA (measured 0.002 on an H200)."""


@contextlib.contextmanager
def scratch(work: Path | None) -> Iterator[Path]:
    """A directory for caches in ``work``, which is made if need be, or in the temporary one; removed at the end."""
    if work:
        work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as made:
        yield Path(made)


class AttentionStep:
    """Tensors of one sequence length on one device, and the step that all threads share."""

    def __init__(self, compiled: Callable[..., Any], device: Any, tokens: int) -> None:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        self.compiled = compiled
        self.device = device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        generator = torch.Generator(device).manual_seed(tokens)
        shape = (1, HEADS, tokens, HEAD_DIM)
        made = [torch.randn(shape, device=device, dtype=dtype, generator=generator) for _ in range(3)]
        self.leaves = [tensor.requires_grad_() for tensor in made]
        self.mask = create_block_mask(causal, 1, None, tokens, tokens, device=device)

    def run(self) -> Any:
        """Forward and backward; leaves gradients on the leaves."""
        import torch

        for leaf in self.leaves:
            leaf.grad = None
        out = self.compiled(*self.leaves, block_mask=self.mask)
        out.sum().backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return out

    def error(self, out: Any) -> float:
        """The larger relative error of output and gradients against float32."""
        import torch

        exact = [leaf.detach().float().requires_grad_() for leaf in self.leaves]
        slow = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
        slow.sum().backward()
        pairs = [(out, slow), *((leaf.grad, other.grad) for leaf, other in zip(self.leaves, exact, strict=True))]
        return max(float((a.float() - b.float()).detach().norm() / b.detach().float().norm()) for a, b in pairs)


def causal(_b: Any, _h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def compiled_attention(device_type: str, *, with_policy: bool) -> Callable[..., Any]:
    """The step, compiled as the project does it; without the policy plainly, as a user would."""
    import torch

    from dflash.compile.compiled import compile_function
    from dflash.compile.dense import flex_or_die

    if device_type == "cpu":

        def sdpa(q: Any, k: Any, v: Any, block_mask: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return compile_function(sdpa, backend="aot_eager")
    return compile_function(flex_or_die) if with_policy else torch.compile(flex_or_die, fullgraph=True, dynamic=False)


def apply_policy(with_policy: bool) -> None:
    """The policy in this thread; without it only room, since a hit limit is another fault than the one shown."""
    import torch._dynamo

    from dflash.compile import policy

    if not torch.cuda.is_available():
        # Debugging on a machine without a GPU: this guard segfaults where two threads compile at once (CUDA builds).
        torch._C._ensureCUDADeviceGuardSet = lambda: None
    if with_policy:
        policy.apply()
    else:
        torch._dynamo.config.recompile_limit = 256


def child(script: str, *arguments: object, cache: Path, limit: float, **environ: str) -> dict[str, Any]:
    """Run ``script`` with ``arguments`` as a fresh process; its last line is JSON. Crash and hang are results."""
    cache.mkdir(parents=True, exist_ok=True)
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, script, *map(str, arguments)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | settings | environ, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired as late:
        return {"ended": "hung", "seconds": limit, "stderr": tail(late.stderr)}
    seconds = round(time.monotonic() - started, 1)
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return {"ended": "ok", "seconds": seconds} | json.loads(lines[-1])
    # faulthandler's clock and our own watchdog both write all stacks and exit 1.
    hung = "Timeout (" in done.stderr or "no progress for" in done.stderr
    return {"ended": "hung" if hung else f"exit {done.returncode}", "seconds": seconds, "stderr": tail(done.stderr)}


def tail(text: str | bytes | None, lines: int = 40) -> str:
    """The last lines of a process's talk."""
    said = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return "\n".join(said.strip().splitlines()[-lines:])


def cache_files(cache: Path) -> dict[str, int]:
    """Name -> bytes of every file that torch keeps in a cache (locks and temporary names left out)."""
    files = {}
    for path in cache.rglob("*"):
        name = path.relative_to(cache).as_posix()
        if path.is_file() and not name.endswith((".lock", ".tmp")) and "/tmp." not in name and "locks/" not in name:
            files[name] = path.stat().st_size
    return files


def growth(before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """New files, counted by their first folder."""
    new = sorted(set(after) - set(before))
    kinds: dict[str, int] = {}
    for name in new:
        kind = name.partition("/")[0]
        kinds[kind if len(kind) > 2 else "generated code"] = (
            kinds.get(kind if len(kind) > 2 else "generated code", 0) + 1
        )
    return {"files": len(new), "bytes": sum(after[name] for name in new), "kinds": kinds, "first": new[:8]}


def kernel_digests(cache: Path) -> list[str]:
    """A digest of each generated source file, the cache's own path taken out, so that two caches can be compared."""
    digests = []
    for path in cache.rglob("*.py"):
        folder = path.relative_to(cache).parts[0]
        if len(folder) == 2:  # inductor's wrappers and kernels
            text = path.read_text().replace(str(cache), "")
            text = re.sub(r"^# AOT ID: .*$", "", text, flags=re.M)  # counts the graphs of a process
            text = re.sub(r"/\w\w/c\w+\.py", "", text)  # names that are digests of files that hold the cache's path
            digests.append(hashlib.sha256(text.encode()).hexdigest()[:16])
    return sorted(digests)


def say(line: str) -> None:
    """Talk on stderr; stdout is one JSON line."""
    print(line, file=sys.stderr, flush=True)
