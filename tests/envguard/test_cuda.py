"""CUDA libraries: two releases side by side, and what native modules were linked with."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from envguard import check_project
from envguard.probes.elf import needed
from envguard.report import Report
from tests.envguard.scratch import Scratch, make_wheel


def shared_object(*sonames: str) -> bytes:
    """A minimal 64-bit ELF file that needs ``sonames``."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in sonames)
    offsets = [1 + sum(len(each) + 1 for each in sonames[:index]) for index in range(len(sonames))]
    start = 64 + 2 * 56
    table = b"".join(struct.pack("<QQ", 1, offset) for offset in offsets)
    base = 0x10000  # addresses are not offsets, as in real files
    place = start + len(table) + 3 * 16
    table += struct.pack("<QQ", 5, base + place) + struct.pack("<QQ", 10, len(strings)) + struct.pack("<QQ", 0, 0)
    end = place + len(strings)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, end, end, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, start, base + start, base + start, len(table), len(table), 8)
    return header + load + dynamic + table + strings


def put(scratch: Scratch, path: str, *sonames: str) -> None:
    """A module that belongs to the distribution that its directory names."""
    place = scratch.site_packages / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(shared_object(*sonames))
    owner = path.partition("/")[0]
    record = next(scratch.site_packages.glob(f"{owner}-*.dist-info")) / "RECORD"
    record.write_text(record.read_text() + f"{path},,\n")


def judge(scratch: Scratch) -> Report:
    return check_project(scratch.root, "cpu", scratch.python, tier="standard")


def named(report: Report) -> list[tuple[str, str, str | None]]:
    return [(each.id, each.subject, each.observed) for each in report.findings]


def lock(scratch: Scratch, *requirements: tuple[str, str]) -> None:
    """Let the project depend on (name, version), so that nothing but the CUDA release is wrong."""
    names = []
    for name, version in requirements:
        make_wheel(scratch.root / "wheels", name, version, {f"{name}/__init__.py": ""})
        names.append(f'"{name.replace("_", "-")}=={version}"')
    path = scratch.root / "pyproject.toml"
    path.write_text(path.read_text().replace('"torch==2.11.0"', ", ".join(['"torch==2.11.0"', *names])))
    scratch.uv("lock")
    scratch.uv("sync", "--locked")


@pytest.mark.parametrize(
    ("requirements", "observed"),
    [
        ([("nvidia_cudnn_cu13", "9.19"), ("nvidia_cublas", "13.1"), ("cuda_toolkit", "13.0.2")], None),
        ([("nvidia_cufft", "12.0"), ("nvidia_curand", "10.4"), ("nvidia_cufile", "1.15")], None),
        ([("nvidia_cudnn_cu12", "9.19")], "nvidia-cudnn-cu12 9.19"),
        ([("nvidia_cublas", "12.8")], "nvidia-cublas 12.8"),
        ([("cupy_cuda12x", "14.0")], "cupy-cuda12x 14.0"),
        ([("nvidia_cuda_runtime", "12.8"), ("nvidia_nccl_cu12", "2")], "nvidia-cuda-runtime 12.8, nvidia-nccl-cu12 2"),
    ],
)
def test_one_cuda_release(scratch: Scratch, requirements: list[tuple[str, str]], observed: str | None) -> None:
    lock(scratch, *requirements)
    assert named(judge(scratch)) == ([] if observed is None else [("CUD001", "cu12", observed)])


def test_a_directory_of_another_release_is_a_stack_too(scratch: Scratch) -> None:
    (scratch.site_packages / "nvidia" / "cu12" / "lib").mkdir(parents=True)
    found = [each for each in named(judge(scratch)) if each[0] == "CUD001"]
    assert found == [("CUD001", "cu12", "nvidia/cu12/")]


def test_without_torch_two_releases_are_still_two(scratch: Scratch) -> None:
    lock(scratch, ("nvidia_cudnn_cu12", "9"), ("nvidia_nccl_cu13", "2"))
    scratch.uv("pip", "uninstall", "torch")
    assert ("CUD001", "cu12", "nvidia-cudnn-cu12 9") in named(judge(scratch))


def test_a_module_that_is_linked_with_torchs_libraries(scratch: Scratch) -> None:
    put(scratch, "torch/lib/libtorch_cuda.so", "libcudart.so.13", "libcufft.so.12", "libcudnn.so.9", "libc.so.6")
    put(scratch, "beta/_C.so", "libcudart.so.13", "libcufft.so.12", "libtorch.so", "libcuda.so.1")
    assert named(judge(scratch)) == []


def test_a_module_for_another_release_than_torchs(scratch: Scratch) -> None:
    put(scratch, "torch/lib/libtorch_cuda.so", "libcudart.so.13", "libcufft.so.12")
    put(scratch, "beta/_C.so", "libcudart.so.12", "libcufft.so.12")
    put(scratch, "beta/_D.so", "libcudart.so.12")
    report = judge(scratch)
    assert named(report) == [("CUD002", "beta", "libcudart.so.12")]
    assert "beta/_C.so needs libcudart.so.12, and torch uses libcudart.so.13" in report.findings[0].message


def test_a_library_that_nobody_provides(scratch: Scratch) -> None:
    put(scratch, "beta/_C.so", "libcublas.so.12")
    assert named(judge(scratch)) == [("CUD002", "beta", "libcublas.so.12")]
    put(scratch, "gamma/lib/libcublas.so.12")
    assert named(judge(scratch)) == []


def test_needs_of_a_real_file(tmp_path: Path) -> None:
    assert any(name.startswith("libc.so") for name in needed(Path(sys.executable).resolve()))
    (tmp_path / "a.so").write_bytes(shared_object("libcudart.so.13", "libm.so.6"))
    assert needed(tmp_path / "a.so") == ("libcudart.so.13", "libm.so.6")


def test_what_is_no_module_needs_nothing(tmp_path: Path) -> None:
    whole = shared_object("libcudart.so.13")
    path = tmp_path / "a.so"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert set(needed(path)) <= {"libcudart.so.13", "libcudart.so.13"[: length - len(whole)]}
    path.write_text("INPUT(libc.so.6)")
    assert needed(path) == ()
    assert needed(tmp_path / "gone.so") == ()
    assert needed(tmp_path) == ()
