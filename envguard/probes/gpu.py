"""The NVIDIA driver and the GPUs that CUDA shows, without torch and without creating a CUDA context.

In: kernel files, then ``libcuda.so.1`` through ctypes. Out: the driver version and one ``Gpu`` a visible device.
``CUDA_VISIBLE_DEVICES`` is honoured, since libcuda honours it. ``gpus()`` initialises CUDA in this process: a child
forked afterwards cannot use CUDA (spawned ones can), so call it where nothing forks later.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from envguard.errors import ProbeError
from envguard.frozen import Frozen
from envguard.probes.programs import is_command

if TYPE_CHECKING:
    import ctypes

MODULE_VERSION = Path("/sys/module/nvidia/version")
PROC_VERSION = Path("/proc/driver/nvidia/version")
SMI_TIMEOUT = 10.0
"""Seconds; nvidia-smi hangs where a GPU has fallen off the bus."""

# Numbers of cuda.h: CUdevice_attribute and CUresult.
_MULTIPROCESSOR_COUNT = 16
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_SUCCESS = 0
_NO_DEVICE = 100


class Gpu(Frozen):
    """One device as CUDA numbers it."""

    index: int
    name: str
    capability: str
    """Compute capability, such as ``9.0``."""
    sm_count: int
    """Streaming multiprocessors."""
    memory_bytes: int


def driver_version() -> str | None:
    """The NVIDIA kernel driver's version, such as ``580.82.07``; None where none is loaded.

    Raises:
        ProbeError: a kernel file cannot be read, or nvidia-smi is there and does not answer.
    """
    if version := _read(MODULE_VERSION).strip():
        return version
    return parse_proc_version(_read(PROC_VERSION)) or _smi_version()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ProbeError(f"{path} cannot be read ({error.strerror}): check its permissions") from error


def parse_proc_version(text: str) -> str | None:
    """The version in ``/proc/driver/nvidia/version``: the first dotted number after ``Kernel Module``."""
    found = re.search(r"Kernel Module[^\n]*?\s(\d+(?:\.\d+)+)\b", text)
    return found[1] if found else None


def _smi_version() -> str | None:
    if not is_command("nvidia-smi"):
        return None
    import subprocess

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT, check=False)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"nvidia-smi does not answer ({error}): look at dmesg for a lost GPU") from error
    line = done.stdout.strip().partition("\n")[0]
    return line if done.returncode == 0 and re.fullmatch(r"\d+(\.\d+)+", line) else None


def gpus() -> tuple[Gpu, ...]:
    """Every GPU that this process may use; () where there is no driver or no device.

    Raises:
        ProbeError: the driver is there and refuses, for instance because it is older than its library.
    """
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:  # the library comes with the driver: without it there is no driver
        return ()
    status = cuda.cuInit(0)
    if status == _NO_DEVICE:
        return ()
    _check(status, "cuInit")
    count = ctypes.c_int()
    _check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return tuple(_describe(cuda, index) for index in range(count.value))


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    import ctypes

    device = ctypes.c_int()
    _check(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    name = ctypes.create_string_buffer(256)
    _check(cuda.cuDeviceGetName(name, len(name), device), "cuDeviceGetName")
    memory = ctypes.c_size_t()
    _check(cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device), "cuDeviceTotalMem")
    major = _attribute(cuda, device, _CAPABILITY_MAJOR)
    minor = _attribute(cuda, device, _CAPABILITY_MINOR)
    return Gpu(
        index=index,
        name=name.value.decode(errors="replace"),
        capability=f"{major}.{minor}",
        sm_count=_attribute(cuda, device, _MULTIPROCESSOR_COUNT),
        memory_bytes=memory.value,
    )


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, number: int) -> int:
    import ctypes

    value = ctypes.c_int()
    _check(cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device), f"cuDeviceGetAttribute({number})")
    return value.value


def _check(status: int, call: str) -> None:
    if status != _SUCCESS:
        raise ProbeError(f"the NVIDIA driver refuses {call} (CUresult {status}): run nvidia-smi and read its message")
