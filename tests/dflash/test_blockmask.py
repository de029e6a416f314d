"""The block mask made without sorting equals torch's, field by field."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from dflash.anchors import block_mask_rule
from dflash.attention import make_block_mask
from dflash.blockmask import MaskRule, block_mask, ordered

CPU = torch.device("cpu")


def assert_same(ours: BlockMask, torchs: BlockMask) -> None:
    *our_fields, _ = ours.as_tuple()
    *torch_fields, _ = torchs.as_tuple()
    assert len(our_fields) == len(torch_fields)
    for own, other in zip(our_fields, torch_fields, strict=True):
        if isinstance(own, Tensor):
            assert isinstance(other, Tensor)
            assert (own.dtype, own.shape, own.is_contiguous()) == (other.dtype, other.shape, other.is_contiguous())
            assert own.tolist() == other.tolist()
        else:
            assert own == other


def causal(_row: Tensor, _head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def windowed(row: Tensor, _head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q >= kv) & (q - kv < 150 * (row + 1))


def nothing(_row: Tensor, _head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q < 0) & (kv < 0)


def everything(_row: Tensor, _head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q >= 0) & (kv >= 0)


@pytest.mark.parametrize("rule", [causal, windowed, nothing, everything])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (512, 1024), (300, 700), (1, 5)])
def test_every_field_is_torchs(rule: MaskRule, queries: int, keys: int) -> None:
    assert_same(block_mask(rule, 3, queries, keys, CPU), create_block_mask(rule, 3, None, queries, keys, device="cpu"))


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Documents, anchors and used slots of two rows of 640 tokens."""
    generator = torch.Generator().manual_seed(seed)
    documents = torch.randint(0, 2, (2, 640), generator=generator).cumsum(1) // 60
    anchors = torch.randint(0, 640, (2, 48), generator=generator).sort().values
    return documents, anchors, torch.rand(2, 48, generator=generator) < 0.8


@pytest.mark.parametrize("seed", range(4))
def test_the_anchor_rule_gives_the_same_blocks(seed: int) -> None:
    documents, anchors, valid = drawn(seed)
    rule = block_mask_rule(documents, anchors, valid, 8)
    torchs = create_block_mask(rule, 2, None, 384, 640 + 384, device="cpu")
    assert_same(make_block_mask(documents, anchors, valid, 8), torchs)


def test_nothing_is_sorted() -> None:
    """ptxas needs minutes for a kernel that sorts: none may come back into the compiled graph."""
    seen: list[str] = []

    def collect(graph: torch.fx.GraphModule, _examples: list[Tensor]) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for module in graph.modules() for node in module.graph.nodes)  # type: ignore[union-attr]
        return graph

    torch.compile(make_block_mask, backend=collect, fullgraph=True, dynamic=False)(*drawn(0), 8)
    assert any("cumsum" in target for target in seen)
    assert not [target for target in seen if "sort" in target]


def test_used_columns_come_first() -> None:
    count, columns = ordered(torch.tensor([[False, True, False, True]]))
    assert (count.tolist(), columns.tolist()) == ([2], [[1, 3, 0, 2]])
