"""Which graphs a run needs, from the configuration alone: devices x shapes x modes. Imports no torch.

In: the configuration, the devices. Out: ``GraphSpec``s. Shapes are fixed by construction: rows are packed to one token
budget and anchor slots are a fixed number, unused ones masked, so documents' lengths and anchors' counts change no
shape. ``warmup.py`` compiles these and nothing else; ``policy.with_room`` makes room for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash.config import Config

Mode = Literal["train", "evaluate"]
"""With gradients, forward and backward; or without, forward alone: another graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSpec:
    """One graph."""

    function: str
    device: str
    mode: Mode
    rows: int
    tokens: int
    """Of a row."""
    block_tokens: int
    """Of a row: anchor slots x block size."""

    @property
    def name(self) -> str:
        """Unique within a run."""
        return f"{self.function} {self.device} {self.rows}x{self.tokens}+{self.block_tokens} {self.mode}"


def needed_graphs(
    config: Config, devices: Sequence[str], *, attention: str, modes: Sequence[Mode] = ("train",)
) -> tuple[GraphSpec, ...]:
    """Every graph of a run on ``devices`` with the resolved kind of attention; () where compiling is off.

    Flex attention has a second graph: the block mask, which holds no gradients whatever the mode, so one a device.
    """
    if not config.compile.enabled:
        return ()

    def spec(function: str, device: str, mode: Mode) -> GraphSpec:
        return GraphSpec(
            function=function,
            device=device,
            mode=mode,
            rows=config.data.rows_per_step,
            tokens=config.data.row_tokens,
            block_tokens=config.data.anchors_per_row * config.drafter.block_size,
        )

    masks = [spec("block mask", device, "evaluate") for device in devices if attention == "flex"]
    steps = [spec("drafter step", device, mode) for device in devices for mode in modes]
    return (*masks, *steps)


def graphs_of_one_function(specs: Sequence[GraphSpec]) -> int:
    """The most graphs that any one function has: what a recompile limit must allow."""
    counts = [sum(spec.function == function for spec in specs) for function in {spec.function for spec in specs}]
    return max(counts, default=1)
