"""Kernel options by trying: the first that fits, what was refused, other errors untouched."""

from __future__ import annotations

import pytest

from dflash.compile.kernels import CANDIDATES, TORCHS_OWN, KernelChoice, KernelError, choose, out_of_resources


class OutOfResources(Exception):
    """As triton's."""


SAYS = "out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes may help."


def needs(words: str, *fitting: str):
    """An attempt on a GPU that only ``fitting`` choices suit; fails as inductor does, wrapped."""
    tried = []

    def attempt(choice: KernelChoice) -> str:
        tried.append(choice.name)
        if choice.name in fitting:
            return f"ran with {choice.name}"
        try:
            raise OutOfResources(words)
        except OutOfResources as cause:
            raise RuntimeError("backend='inductor' raised:\nNoTritonConfigsError: No valid triton configs.") from cause

    return attempt, tried


def test_a_large_gpu_takes_torchs_own_and_pays_for_one_attempt() -> None:
    attempt, tried = needs(SAYS, TORCHS_OWN.name)
    result, chosen = choose(attempt)
    assert result == "ran with torch's own"
    assert tried == ["torch's own"]
    assert chosen.document() == {"name": "torch's own", "options": {}, "refused": {}}
    assert chosen.choice.as_dict() is None


def test_a_small_gpu_takes_the_first_that_fits_and_the_refusals_are_recorded() -> None:
    attempt, tried = needs(SAYS, "tiles of 32, one stage", "tiles of 16, one stage")
    _, chosen = choose(attempt)
    assert chosen.choice.name == "tiles of 32, one stage"
    assert tried == [candidate.name for candidate in CANDIDATES[:4]]
    assert chosen.document()["refused"] == dict.fromkeys(tried[:3], SAYS)
    assert chosen.choice.as_dict() == {"num_stages": 1} | {
        f"{way}_BLOCK_{axis}": 32 for way, axes in (("fwd", "MN"), ("bwd", ["M1", "N1", "M2", "N2"])) for axis in axes
    }


def test_a_gpu_that_fits_nothing_is_told_what_to_do() -> None:
    attempt, _ = needs(SAYS)
    with pytest.raises(KernelError, match=r"5 tried.*101376.*drafter.attention = sdpa"):
        choose(attempt)


def test_other_errors_pass_and_nothing_else_is_tried() -> None:
    attempt, tried = needs("ptxas fatal: Value 'sm_120' is not defined", "tiles of 16, one stage")
    with pytest.raises(RuntimeError, match="inductor") as raised:
        choose(lambda choice: attempt(choice) if False else fail(tried, choice))
    assert tried == ["torch's own"]
    assert out_of_resources(raised.value) is None


def fail(tried: list[str], choice: KernelChoice) -> None:
    tried.append(choice.name)
    raise RuntimeError("backend='inductor' raised: PTXASError: Value 'sm_120' is not defined for option 'gpu-name'")


def test_the_words_are_found_in_every_wrapping() -> None:
    assert out_of_resources(OutOfResources(SAYS)) == SAYS
    flat = RuntimeError(f"No valid triton configs. OutOfResources: {SAYS}")
    assert out_of_resources(flat) == f"No valid triton configs. OutOfResources: {SAYS}"
    assert out_of_resources(type("NoValidChoicesError", (RuntimeError,), {})("none")) == "NoValidChoicesError: none"
    assert out_of_resources(ValueError("CUDA out of memory")) is None


def test_tiles_divide_a_mask_block() -> None:
    for candidate in CANDIDATES:
        assert all(128 % value == 0 for name, value in candidate.options if "BLOCK" in name)
