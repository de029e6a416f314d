"""Torch's own bundler, on a cache directory, in a process of its own.

    python bundle_kernels.py collect DEVICE/KERNEL...    a graph entry with these kernels' files on stdout, pickled
    python bundle_kernels.py emit < ENTRY                writes the files that the entry holds, as a hit does

The cache directory is ``TORCHINDUCTOR_CACHE_DIR``.
"""

from __future__ import annotations

import pickle
import sys

from torch._inductor.triton_bundler import TritonBundler


def main(what: str, *kernels: str) -> None:
    if what == "emit":
        TritonBundler.read_and_emit(pickle.load(sys.stdin.buffer)["bundle"])
        return
    TritonBundler.begin_compile()
    for kernel in kernels:
        device, name = kernel.split("/")
        TritonBundler.put(name, int(device))
    bundle, _ = TritonBundler.collect()
    entry = {"source": "text before " * 2000, "bundle": bundle, "after": "text after " * 2000, "TOKEN": sys.argv[0]}
    sys.stdout.buffer.write(pickle.dumps(entry))


if __name__ == "__main__":
    main(*sys.argv[1:])
