"""The walk over a graph entry's pickle, on entries that torch does not write: odd names of files, millions of them."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from cache_tools.bundled import kernels_in, without_kernels

from .test_bundled import HELD, reader


@dataclasses.dataclass
class TritonKernelArtifact:
    filename: str
    payload: bytes


@dataclasses.dataclass
class TritonKernelArtifacts:
    kernel_hash: str
    device: int
    artifacts: list[TritonKernelArtifact]


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("same_kernel", [False, True])
@pytest.mark.parametrize("name", ["payload", "static_autotuners", "payload.json", "cubin", "b.cubin"])
def test_only_what_is_named_like_a_kernels_file_is_left_out(name: str, same_kernel: bool, protocol: int) -> None:
    name = "".join(name)  # another object than the key "payload", which pickle would take from its memo
    one = [TritonKernelArtifact("a.ptx", b"left out" * 400), TritonKernelArtifact("a.cubin", b"left out too" * 400)]
    other = [TritonKernelArtifact(name, b"the one" * 400), TritonKernelArtifact("c.cubin", b"the last" * 400)]
    kernels = [TritonKernelArtifacts(HELD[0][2:], 0, one), TritonKernelArtifacts(HELD[1][2:], 0, other)]
    if same_kernel:
        kernels = [TritonKernelArtifacts(HELD[0][2:], 0, [*one, *other])]
    data = pickle.dumps(kernels, protocol=protocol)
    text = b"".join(without_kernels(reader(data), len(data)))
    assert kernels_in([text]) == kernels_in([data])
    assert b"left out" not in text
    assert (b"the one" * 400 in text) == (name != "b.cubin")
    assert (b"the last" in text) == (name == "static_autotuners"), "the walk ends there"


@pytest.mark.parametrize("file", [b"C\x00", b"C\x01x"], ids=["empty", "a byte"])
def test_millions_of_tiny_files_are_given_up(file: bytes) -> None:
    hostile = b"\x8c\x15TritonKernelArtifacts\x94\x8c\x06xx.ptx" + file * 1_500_000
    reads = 0

    def read(at: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        return hostile[at : at + length]

    text = b"".join(without_kernels(read, len(hostile)))
    assert len(text) > len(hostile) - 100_000
    assert reads < 300_000
