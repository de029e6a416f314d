"""Fill a compile cache with what torch itself writes: hundreds of MB, for measuring snapshots on a real one.

    python benchmarks/real_cache.py DIR [--mode default] [--megabytes 350] [--processes 8] [--seconds 300]

In: one CUDA device. Out: the cache in DIR (inductor's and Triton's together), its size and number of files as one JSON
line. Small transformer layers of many widths and lengths are compiled with ``--mode``, forward and backward, by several
processes that share the cache; each ends after a layer, once the cache is large enough or the time is over. The default
mode is torch's own; ``max-autotune-no-cudagraphs`` also leaves the kernels of every candidate. Nothing is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from flexlab import cache_files, say


def fill(cache: Path, mode: str, part: int, parts: int, megabytes: int, seconds: float) -> None:
    """One process: every ``parts``-th shape from ``part`` on."""
    import torch
    import torch._inductor.config

    torch._inductor.config.autotune_in_subproc = False
    begun = time.monotonic()
    shapes = [(width, tokens) for tokens in range(256, 8192, 64) for width in (256, 384, 512, 768, 1024, 1536)]
    for width, tokens in shapes[part::parts]:
        size = sum(cache_files(cache).values())
        if time.monotonic() - begun > seconds or size > megabytes * 1_000_000:
            return
        torch._dynamo.reset()
        layer = torch.nn.TransformerEncoderLayer(width, 8, 2 * width, dropout=0.0, batch_first=True)
        layer = layer.to("cuda", torch.bfloat16)
        compiled = torch.compile(layer, mode=mode, dynamic=False)
        compiled(torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16)).sum().backward()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--megabytes", type=int, default=350)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        fill(options.cache, options.mode, options.part, options.processes, options.megabytes, options.seconds)
        return 0
    options.cache.mkdir(parents=True, exist_ok=True)
    environ = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(options.cache),
        "TRITON_CACHE_DIR": str(options.cache / "triton"),
    }
    running = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--part", str(part)], env=environ)
        for part in range(options.processes)
    ]
    codes = [process.wait() for process in running]
    files = cache_files(options.cache)
    say(f"processes ended with {codes}")
    print(json.dumps({"schema": 1, "files": len(files), "bytes": sum(files.values()), "processes": codes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
