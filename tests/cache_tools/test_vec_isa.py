"""Our choice of vector ISA, against a table of processors and against torch's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_tools.vec_isa import candidates, cpu_flags, pick, vec_isa

AVX2 = "fma avx2"
SKYLAKE = f"{AVX2} avx512f avx512dq avx512bw avx512vl"
CASCADE = f"{SKYLAKE} avx512_vnni"
ZEN4 = f"{CASCADE} avx512_bf16"
SAPPHIRE = f"{ZEN4} amx_tile amx_bf16 amx_int8"


@pytest.mark.parametrize(
    ("flags", "environ", "name", "bits"),
    [
        (AVX2, {}, "avx2", 256),
        (SKYLAKE, {}, "avx512", 512),
        (CASCADE, {}, "avx512 avx512_vnni", 512),
        (SAPPHIRE, {}, "avx512 avx512_vnni amx_tile", 512),
        (SAPPHIRE, {"ATEN_CPU_CAPABILITY": "avx512"}, "avx512 avx512_vnni amx_tile", 512),
        (SAPPHIRE, {"ATEN_CPU_CAPABILITY": "avx2"}, "avx2", 256),
        (SAPPHIRE, {"ATEN_CPU_CAPABILITY": "default"}, "INVALID_VEC_ISA", 0),
        (SAPPHIRE, {"ATEN_CPU_CAPABILITY": "nonsense"}, "avx512 avx512_vnni amx_tile", 512),
        (AVX2, {"ATEN_CPU_CAPABILITY": "avx512"}, "avx2", 256),
        (AVX2, {"TORCHINDUCTOR_VEC_ISA_OK": "0"}, "INVALID_VEC_ISA", 0),
        ("sse4_2", {}, "INVALID_VEC_ISA", 0),
    ],
)
def test_x86(flags: str, environ: dict[str, str], name: str, bits: int) -> None:
    isa = pick(candidates("x86_64", frozenset(flags.split()), environ=environ), environ)
    assert (isa.name, isa.bits) == (name, bits)


def test_bf16_options_go_where_torch_puts_them() -> None:
    amx, vnni, plain = candidates("x86_64", frozenset(SAPPHIRE.split()), environ={})[:3]
    assert amx.flags.endswith("-mamx-int8 -mavx512bf16")
    assert "bf16" not in vnni.flags
    assert plain.flags.endswith("-mavx512bf16")


def test_arm_is_wide_only_where_its_vectors_are() -> None:
    flags = cpu_flags("processor : 0\nFeatures\t: fp asimd sve bf16\n")
    assert pick(candidates("aarch64", flags, wide_sve=True, environ={}), {}).bits == 256
    assert pick(candidates("aarch64", flags, wide_sve=False, environ={}), {}).bits == 128


PROBE = """
import json, os
from torch._inductor.cpu_vec_isa import pick_vec_isa
answers = {}
for value in (None, "avx2", "default"):
    os.environ.pop("ATEN_CPU_CAPABILITY", None)
    if value: os.environ["ATEN_CPU_CAPABILITY"] = value
    isa = pick_vec_isa()
    answers[str(value)] = [str(isa), isa.bit_width(), isa.build_arch_flags()]
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_torch_itself_decides_the_same(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_VEC_ISA_OK"}
    environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for value, answer in answers.items():
        changed = {name: text for name, text in environ.items() if name != "ATEN_CPU_CAPABILITY"}
        isa = vec_isa(changed if value == "None" else changed | {"ATEN_CPU_CAPABILITY": value})
        assert [isa.name, isa.bits, isa.flags] == answer, f"ATEN_CPU_CAPABILITY={value}"
