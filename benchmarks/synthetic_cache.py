"""A cache directory shaped like the real one of a GPU training: 350 MB in about 5,000 files, compressing 5 to 10 times.

In: a directory, a number of files and a seed. Out: files of the kinds, names and sizes that inductor and triton leave:
for each kernel a triton folder (cubin, ptx, ttir, ttgir, llir, source, json, group) and its Python source, and for
every two or three kernels a graph entry of a megabyte that holds their files too, as torch's do. Names that torch makes
from the content are made from the content, shared objects are ELF files. The text is random within templates.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import pickle
import random
import struct
from dataclasses import dataclass
from pathlib import Path

FILES_PER_KERNEL = 9
KERNELS_PER_GRAPH = 2.6
LINES = (
    "\tld.global.b32 \t%r{a}, [%rd{b}+{c}];\n",
    "\tfma.rn.f32 \t%f{a}, %f{b}, %f{d}, 0f3F{c:06X};\n",
    "\t.loc\t1 {c} 48                         // {file}.py:{c}:48\n",
    "\tselp.b32 \t%r{a}, %r{b}, %r{d}, %p{c};\n",
    "\tmul.wide.s32 \t%rd{a}, %r{b}, 4;\n\tadd.s64 \t%rd{e}, %rd{d}, %rd{a};\n",
    "    %{a} = tt.load %{b}, %{d} evictionPolicy = evict_last : tensor<1024x!tt.ptr<bf16>> loc(#loc{c})\n",
    "    %{a} = arith.addf %{b}, %{d} : tensor<1024xf32> loc(#loc{c})\n",
    "    %{a} = arith.select %{b}, %{d}, %{e} : tensor<1024xi1>, tensor<1024xf32> loc(#loc{c})\n",
    "    tmp{a} = tl.load(in_ptr{c} + (x0 + 576*x1), xmask, eviction_policy='evict_last').to(tl.float32)\n",
    "    tmp{a} = tl.where(tmp{b} < {c}, tmp{d}, tmp{e})\n",
    "  %{a} = insertelement <2 x float> %{b}, float %{d}, i64 0, !dbg !{c}\n",
    "  %{a} = tail call float @llvm.nvvm.fma.rn.ftz.f(float %{b}, float %{d}, float %{e}), !dbg !{c}\n",
    "buf{a} = empty_strided_cuda((8, {c}, 576), ({c}*576, 576, 1), torch.bfloat16)\n",
)
"""What kernels are written in: PTX, Triton's IR, Python, LLVM; numbered upwards, as compilers number."""


@dataclass
class TritonKernelArtifact:
    """As torch pickles it."""

    filename: str
    payload: bytes


@dataclass
class TritonKernelArtifacts:
    """As torch pickles it."""

    kernel_hash: str
    device: int
    artifacts: list[TritonKernelArtifact]


def make_cache(root: Path, files: int = 5_000, seed: int = 0, mean_kb: int = 70) -> tuple[int, int]:
    """Fill ``root`` with about ``files`` files of ``mean_kb`` on average; the files and bytes written."""
    source = random.Random(seed)
    text = _pool(6 << 20)
    count = size = 0
    kernels = int(files / (FILES_PER_KERNEL + 2 / KERNELS_PER_GRAPH))
    scale = mean_kb / 70
    due = 0.0
    bundled: list[TritonKernelArtifacts] = []

    def put(path: str, data: bytes) -> None:
        nonlocal count, size
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        count, size = count + 1, size + len(data)

    for number in range(kernels):
        name = f"triton_{number}"
        kernel = base64.b32encode(hashlib.sha256(f"{seed} {number}".encode()).digest())[:52].decode()
        folder = f"triton/0/{kernel}"
        artifacts: list[TritonKernelArtifact] = []

        def some(kb: float) -> bytes:
            return _text(source, text, int(kb * 1024 * scale * source.lognormvariate(-0.125, 0.5)))

        def both(filename: str, data: bytes) -> None:
            put(f"{folder}/{filename}", data)  # noqa: B023 - called at once
            artifacts.append(TritonKernelArtifact(filename, data))  # noqa: B023

        both(f"{name}.cubin", b"\x7fELF" + _machine_code(source, text, int(40_000 * scale)))
        for suffix, kb in (("ptx", 80), ("llir", 60), ("ttgir", 18), ("ttir", 12), ("source", 10)):
            both(f"{name}.{suffix}", some(kb))
        children = {f"{name}.{suffix}": f"{root}/{folder}/{name}.{suffix}" for suffix in ("cubin", "ptx", "ttir")}
        both(f"{name}.json", json.dumps({"hash": b32(some(1)), "num_warps": 4, "shared": number}).encode())
        both(f"__grp__{name}.json", json.dumps({"child_paths": children}).encode())
        bundled.append(TritonKernelArtifacts(kernel, 0, artifacts))
        code = some(8).strip()
        put(f"{b32(code)[:2]}/c{b32(code)}.py", code)
        due += 1 / KERNELS_PER_GRAPH
        while due >= 1:
            due -= 1
            graph = pickle.dumps({"source_code": some(380), "bundle": bundled}, protocol=4)
            joint = some(160)
            bundled = []
            key = b32(graph[:512] + str(number).encode())
            put(f"fxgraph/{key[:2]}/f{key}/{b32(graph)}", graph)
            put(f"aotautograd/a{key}/{b32(joint)}", joint)
    put("iq/ciqlauncher.main.so", elf(_machine_code(source, text, 60_000)))
    return count, size


def grow(root: Path, step: int) -> None:
    """What one more day of work adds to the cache: a few kernels and a graph."""
    make_cache(root, files=60, seed=1_000 + step)


def elf(payload: bytes) -> bytes:
    """A 64-bit little-endian ELF file with one loadable segment and its section table at the end."""
    end = 64 + 56 + len(payload)
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, end, 0, 64, 56, 1, 64, 1, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, end, end, 4096) + payload + bytes(64)


@functools.cache
def _pool(size: int) -> bytes:
    """Code as a compiler unrolls it: the same few hundred runs of statements over and over, numbered anew."""
    source = random.Random(0)
    runs = [[_statement(source) for _ in range(source.randrange(3, 12))] for _ in range(300)]
    lines: list[str] = []
    length = number = 0
    while length < size:
        for template, constant, back in source.choice(runs):
            number = (number + 1) % 2000
            b, d, e = (max(0, number - step) for step in back)
            lines.append(template.format(a=number, b=b, c=constant, d=d, e=e, file="kernel"))
            length += len(lines[-1])
    return "".join(lines).encode()


def _statement(source: random.Random) -> tuple[str, int, list[int]]:
    return source.choice(LINES), source.randrange(1, 1000), [source.choice((1, 1, 2, 3, 5, 8)) for _ in range(3)]


def _text(source: random.Random, pool: bytes, size: int) -> bytes:
    """``size`` bytes of lines in an order of its own; unique by its first line."""
    parts = [b"// %032x\n" % source.getrandbits(128)]
    length = len(parts[0])
    while length < size:
        start = source.randrange(len(pool) - 4096)
        parts.append(pool[start : start + source.randrange(512, 4096)])
        length += len(parts[-1])
    return b"".join(parts)[: max(size, 64)]


def _machine_code(source: random.Random, pool: bytes, size: int) -> bytes:
    """Half noise, half repetition, as code is."""
    noise = source.randbytes(size // 3)
    return b"".join(noise[at : at + 64] + bytes(128) for at in range(0, len(noise), 64))[:size]


def b32(data: bytes) -> str:
    """A checksum as torch writes it into names."""
    return base64.b32encode(hashlib.sha256(data).digest())[:51].decode().lower()
