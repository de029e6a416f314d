"""Kernel options of flex attention, chosen by trying: torch's own first, smaller tiles where shared memory runs out.

In: an attempt that compiles and runs a graph with given options. Out: the first choice that works, and what was
refused. H200-sized shared memory takes torch's own; workstation parts (sm_86, sm_89, sm_120: about 100 KB) may not.
The attempt is the warm-up itself, so a GPU that takes the first choice pays nothing. It never guesses from a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dflash.errors import RunError

Result = TypeVar("Result")


class KernelError(RunError):
    """No kernel options fit this GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """Options for ``flex_attention(kernel_options=)``; tiles must divide the 128 tokens of a mask block."""

    name: str
    options: tuple[tuple[str, int], ...] = ()

    def as_dict(self) -> dict[str, Any] | None:
        """None leaves every option to torch."""
        return dict(self.options) or None


def _tiles(size: int) -> tuple[tuple[str, int], ...]:
    names = ("fwd_BLOCK_M", "fwd_BLOCK_N", "bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2")
    return tuple((name, size) for name in names)


TORCHS_OWN = KernelChoice(name="torch's own")

CANDIDATES: tuple[KernelChoice, ...] = (
    TORCHS_OWN,
    KernelChoice(name="one stage", options=(("num_stages", 1),)),
    KernelChoice(name="tiles of 64, one stage", options=(*_tiles(64), ("num_stages", 1))),
    KernelChoice(name="tiles of 32, one stage", options=(*_tiles(32), ("num_stages", 1))),
    KernelChoice(name="tiles of 16, one stage", options=(*_tiles(16), ("num_stages", 1))),
)
"""From the fastest to what fits everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Which choice works here, for ``compile.json``."""

    choice: KernelChoice
    refused: tuple[tuple[str, str], ...]
    """Names of the choices before it, and torch's words."""

    def document(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.choice.name, "options": dict(self.choice.options), "refused": dict(self.refused)}


def choose(
    attempt: Callable[[KernelChoice], Result], candidates: Sequence[KernelChoice] = CANDIDATES
) -> tuple[Result, Chosen]:
    """The result of the first attempt that does not run out of shared memory or registers; other errors pass through.

    Raises:
        KernelError: every candidate runs out.
    """
    refused: list[tuple[str, str]] = []
    for candidate in candidates:
        try:
            result = attempt(candidate)
        except Exception as error:
            words = out_of_resources(error)
            if words is None:
                raise
            refused.append((candidate.name, words))
        else:
            return result, Chosen(choice=candidate, refused=tuple(refused))
    name, words = refused[-1]
    raise KernelError(
        f"flex attention fits this GPU with no kernel options ({len(refused)} tried, last {name}: {words}); "
        f"set drafter.attention = sdpa, or a smaller head_dim"
    )


def out_of_resources(error: BaseException) -> str | None:
    """The line in which triton or inductor says that a kernel needs more than the GPU has; None for other errors."""
    for each in _chain(error):
        for line in str(each).splitlines():
            if "out of resource" in line.lower() or "OutOfResources" in line:
                return line.strip()
        if type(each).__name__ in ("OutOfResources", "NoValidChoicesError"):
            return f"{type(each).__name__}: {each}".strip()
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        yield here
        here = here.__cause__ or here.__context__
