"""Sources of Triton templates are named by more than their text, and the rest can be read from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_tools.kinds import Kind, name_matches
from cache_tools.live import check_live

DEFINES: dict[str, dict[str, object]] = {
    "matmul": {"BLOCK_M": 64, "EVEN_K": True, "ACC_TYPE": "tl.float32", "ALLOW_TF32": False},
    "flex": {"PRESCALE_QK": False, "SM_SCALE": 0.125, "FLOAT32_PRECISION": "'tf32'", "BLOCK_N1": 32, "kpack": None},
    "tiny scale": {"SM_SCALE": 1e-05, "GQA": 2},
}


def source(values: dict[str, object]) -> str:
    """A source as torch's template writes it."""
    defines = "".join(f"    {name} : tl.constexpr = {value}\n" for name, value in values.items())
    return (
        "\nimport triton\n\n@triton_heuristics.template(\n\n"
        "num_stages=3,\nnum_warps=4,\ntriton_meta={'device': 0},\n)\n"
        f"@triton.jit\ndef triton_mm(arg_A, out_ptr0):\n{defines}    INDEX_DTYPE : tl.constexpr = tl.int32\n"
        "    OWN : tl.constexpr = 7\n    tl.store(out_ptr0, arg_A)\n"
    )


def hash_as_torch(text: str, extra: str) -> str:
    from torch._inductor.codecache import get_hash

    return f"{get_hash(text.strip(), extra)}.py"


@pytest.mark.parametrize("which", DEFINES)
def test_a_template_is_named_by_its_source_and_its_parameters(which: str) -> None:
    values = DEFINES[which]
    extra = "-".join([*(f"{name}={values[name]!r}" for name in sorted(values)), "num_stages=3", "num_warps=4"]) + "-"
    name = hash_as_torch(source(values), extra)
    assert name_matches(f"2b/{name}", Kind.SOURCE, source(values).encode())
    for other in (source(values).replace("arg_A)", "arg_B)"), source(values).replace("num_warps=4", "num_warps=8")):
        assert not name_matches(f"2b/{name}", Kind.SOURCE, other.encode())


def test_a_value_may_be_an_expression() -> None:
    """A symbolic size is shown without quotes by ``repr`` as well."""
    text = source({"SIZE": "s0"})
    assert name_matches(f"2b/{hash_as_torch(text, 'SIZE=s0-num_stages=3-num_warps=4-')}", Kind.SOURCE, text.encode())


def test_a_template_in_a_live_cache_is_sound(tmp_path: Path) -> None:
    text = source(DEFINES["tiny scale"])
    name = hash_as_torch(text, "GQA=2-SM_SCALE=1e-05-num_stages=3-num_warps=4-")
    file = tmp_path / name[1:3] / name
    file.parent.mkdir()
    file.write_text(text)
    assert check_live(tmp_path, deep=True) == ()
    file.write_text(text.replace("arg_A)", "arg_B)"))
    assert [bad.path for bad in check_live(tmp_path, deep=True)] == [f"{name[1:3]}/{name}"]


def test_another_source_is_named_by_its_text_alone(tmp_path: Path) -> None:
    text = "x = 1\n"
    assert name_matches(f"ab/{hash_as_torch(text, '')}", Kind.SOURCE, text.encode())
    assert not name_matches(f"ab/{hash_as_torch(text, 'BLOCK_M=64-')}", Kind.SOURCE, text.encode())
