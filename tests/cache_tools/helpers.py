"""A small cache with one file of every kind that matters, named as torch names them, and faults to inject."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import struct
import subprocess
from base64 import b32encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache_tools.fingerprint import INPUTS, KEY_VERSION, Fingerprint
from envguard import fsops

NATIVE = "iq/ciqkernel.main.so"
SOURCE_CPP = "iq/ciqkernel.main.cpp"
BEST_CONFIG = "hh/somehash.best_config"
GEMM = "cache/44136fa3"


def b32(data: bytes) -> str:
    return b32encode(hashlib.sha256(data).digest())[:51].decode().lower()


def elf(payload: bytes = b"code" * 64) -> bytes:
    """A 64-bit little-endian ELF file with one loadable segment, its section table at the very end, as linkers do."""
    body = 64 + 56
    sections = body + len(payload)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections, 0, 64, 56, 1, 64, 1, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, body + len(payload), body + len(payload), 4096)
    return head + segment + payload + bytes(64)


def fingerprint(**changes: str | None) -> Fingerprint:
    values: dict[str, str | None] = {one.name: f"some {one.name}" for one in INPUTS}
    return Fingerprint(key_version=KEY_VERSION, values=values | changes)


def write(root: Path, path: str, data: bytes, *, executable: bool = False) -> str:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    file.chmod(0o755 if executable else 0o644)
    return path


def make_cache(root: Path, *, triton: bool = False) -> list[str]:
    """Fill ``root``; the paths of what a snapshot keeps."""
    graph, joint, code = b"pickled graph" * 40, b"pickled joint graph" * 40, b"def call(): return 1\n"
    kept = [
        write(root, f"fxgraph/ab/fabkey/{b32(graph)}", graph),
        write(root, f"aotautograd/akey/{b32(joint)}", joint),
        write(root, f"ca/c{b32(code.strip())}.py", code),
        write(root, SOURCE_CPP, b"// kernel\n" * 50),
        write(root, NATIVE, elf(), executable=True),
    ]
    if triton:
        kept.append(write(root, "triton/0/HASH/kernel.cubin", b"\x7fcubin" * 9))
        group = {"child_paths": {"kernel.cubin": f"{root}/triton/0/HASH/kernel.cubin"}}
        kept.append(write(root, "triton/0/HASH/__grp__kernel.json", json.dumps(group).encode()))
        kept.append(write(root, BEST_CONFIG, b'{"XBLOCK": 64}'))
        kept.append(write(root, GEMM, b'{"mm": 1}'))
    write(root, "locks/ciqkernel.lock", b"")
    write(root, "ca/.123.456.tmp", b"half")
    return sorted(kept)


def tree(root: Path) -> dict[str, bytes]:
    """Every file under ``root`` with its content."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def packs(root: Path) -> list[Path]:
    """The packs of a store."""
    return sorted((root / "blobs").glob("*.pack"))


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


STEPS = ("fsync", "rename", "link", "unlink", "mkdir", "replace")
"""Functions of ``os`` before which a process may be stopped where the code does not go through ``fsops``."""


def steps_of(action: Callable[[], object]) -> list[str]:
    """The steps of ``action``, from a child that ends normally."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        fsops.trip = lambda name: os.write(write, f"{name}\n".encode()) and None
        try:
            action()
        except BaseException:
            os._exit(7)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        steps = lines.read().split()
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 0, "the action failed by itself"
    return steps


@contextlib.contextmanager
def tmpfs(where: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of that size; without the right to mount one, in a name space where this user is root."""
    if os.geteuid() != 0:
        pytest.fail("needs root, or: unshare --user --map-root-user --mount pytest …")
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=0700", "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def killed_at(step: int, action: Callable[[], object], *, plain: bool = False) -> bool:
    """Run ``action`` in a child that is SIGKILLed before its ``step``-th write step; False if it ended before that.

    ``plain``: steps are those of ``os``, for code that does not go through ``fsops``.
    """
    child = os.fork()
    if child == 0:
        _arm_os(step) if plain else _arm(step)
        try:
            action()
        except BaseException:
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the action failed by itself"
    return False


def _arm(step: int) -> None:
    steps = itertools.count(1)  # its next() is atomic among threads

    def trip(_name: str) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    fsops.trip = trip


def _arm_os(step: int) -> None:
    steps = itertools.count(1)

    def fatal(function: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    for name in STEPS:
        setattr(os, name, fatal(getattr(os, name)))
