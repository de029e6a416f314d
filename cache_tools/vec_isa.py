"""The CPU vector instructions that inductor generates code for, decided as torch 2.11 does, without importing torch.

In: the machine, its ``/proc/cpuinfo``, and the variables ``ATEN_CPU_CAPABILITY`` and ``TORCHINDUCTOR_VEC_ISA_OK``.
Out: a ``VecIsa``. torch's own ``pick_vec_isa`` (``torch/_inductor/cpu_vec_isa.py``) compiles and loads a probe for each
candidate, 19 s a process; this assumes that the compiler knows what the processor knows, as gcc does from 11 on.
A setting of ``torch._inductor.config.cpp.simdlen`` is not seen.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from envguard.frozen import Frozen

CPUINFO = Path("/proc/cpuinfo")
SVE_LENGTH = Path("/proc/sys/abi/sve_default_vector_length")
_AVX512 = "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma"
_VNNI = f"{_AVX512} -mavx512vnni -mavx512vl"
_AMX = f"{_VNNI} -mamx-tile -mamx-bf16 -mamx-int8"


class VecIsa(Frozen):
    """One answer of ``pick_vec_isa``, spelt as torch spells it."""

    name: str
    """``str(isa)``, such as ``avx512 avx512_vnni amx_tile``; ``INVALID_VEC_ISA`` for scalar code."""
    bits: int
    """Width of a vector; 0 for scalar code."""
    flags: str
    """``isa.build_arch_flags()``: the compiler's options."""


SCALAR = VecIsa(name="INVALID_VEC_ISA", bits=0, flags="")
_NEON = VecIsa(name="asimd", bits=128, flags="")
_SVE256 = VecIsa(name="asimd", bits=256, flags="-march=armv8-a+sve+bf16 -msve-vector-bits=256")
_AVX2 = VecIsa(name="avx2", bits=256, flags="-mavx2 -mfma -mf16c")
_VSX = VecIsa(name="vsx", bits=256, flags="-mvsx")
_ZVECTOR = VecIsa(name="zvector", bits=256, flags="-mvx -mzvector")


def vec_isa(environ: Mapping[str, str] = os.environ) -> VecIsa:
    """The vector ISA of this machine and environment.

    Raises:
        OSError: ``/proc/cpuinfo`` cannot be read on Linux.
    """
    machine = os.uname().machine
    if sys.platform == "darwin":
        return pick((_NEON,) if machine == "arm64" else (), environ)
    flags = cpu_flags(CPUINFO.read_text()) if sys.platform == "linux" else frozenset[str]()
    wide = machine == "aarch64" and SVE_LENGTH.is_file() and SVE_LENGTH.read_text().strip() == "32"  # bytes
    return pick(candidates(machine, flags, wide_sve=wide, environ=environ), environ)


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The first processor's ``flags`` (x86), ``Features`` (arm) or ``features`` (s390x)."""
    found = re.search(r"^(?:flags|features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE | re.IGNORECASE)
    return frozenset(found[1].split()) if found else frozenset()


def candidates(
    machine: str, flags: frozenset[str], *, wide_sve: bool = False, environ: Mapping[str, str]
) -> tuple[VecIsa, ...]:
    """``valid_vec_isa_list()``: what a processor with these flags offers, widest first."""
    if machine == "aarch64":
        capability = environ.get("ATEN_CPU_CAPABILITY", "")
        sve = wide_sve and {"sve", "bf16"} <= flags and capability not in ("default", "neon")
        return (_SVE256,) if sve else (_NEON,)
    if machine == "ppc64le":
        return (_VSX,)
    if machine == "s390x":
        return (_ZVECTOR,) if "vxe" in flags else ()
    if machine not in ("x86_64", "AMD64") or environ.get("TORCHINDUCTOR_VEC_ISA_OK") == "0":
        return ()
    return _x86(flags)


def _x86(flags: frozenset[str]) -> tuple[VecIsa, ...]:
    found: list[VecIsa] = []
    avx512 = "avx512f" in flags
    vnni = avx512 and "avx512_vnni" in flags
    bf16 = " -mavx512bf16" if "avx512_bf16" in flags else ""
    if vnni and "amx_tile" in flags:
        fp16 = " -mamx-fp16" if "amx_fp16" in flags else ""
        found.append(VecIsa(name="avx512 avx512_vnni amx_tile", bits=512, flags=f"{_AMX}{bf16}{fp16}"))
    if vnni:  # torch leaves bf16 out of exactly this one
        found.append(VecIsa(name="avx512 avx512_vnni", bits=512, flags=_VNNI))
    if avx512:
        found.append(VecIsa(name="avx512", bits=512, flags=f"{_AVX512}{bf16}"))
    if "avx2" in flags:
        found.append(_AVX2)
    return tuple(found)


def pick(valid: tuple[VecIsa, ...], environ: Mapping[str, str]) -> VecIsa:
    """``get_isa_from_cpu_capability``: the widest that ``ATEN_CPU_CAPABILITY`` allows; other values are ignored."""
    if not valid:
        return SCALAR
    capability = environ.get("ATEN_CPU_CAPABILITY")
    if capability == "default":
        return SCALAR
    if capability in ("zvector", "vsx", "avx2", "avx512"):
        return next((isa for isa in valid if capability in isa.name), valid[0])
    return valid[0]
