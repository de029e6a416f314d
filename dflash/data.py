"""Packing and the batch schedule: which rows and anchors step s sees, as pure functions of (data, seed, s).

In: documents. Out: fixed-length rows, and ``Schedule.batch(step)``. There is no iterator state to save: a resumed run
asks for step s and gets exactly the batch that an unbroken run got. Rows are packed once (first fit, longest first),
their order changes every epoch, anchors are drawn anew every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash.anchors import anchor_candidates, choose_anchors, make_batch
from dflash.batch import Batch, Row
from dflash.errors import InputError
from dflash.prepare import Document

PADDING = -1  # document index of padding tokens


def pack(documents: Sequence[Document], row_tokens: int) -> tuple[list[Row], int]:
    """First-fit-decreasing packing into rows of ``row_tokens``; longer documents are cut at the end.

    Returns:
        rows, and how many documents were left out because fewer than two supervised tokens remain.

    Raises:
        InputError: nothing remains.
    """
    kept = [(doc.tokens[:row_tokens], doc.prompt_length) for doc in documents]
    usable = [(tokens, start) for tokens, start in kept if len(tokens) - start >= 2]
    if not usable:
        raise InputError(f"no document has two supervised tokens within data.row_tokens = {row_tokens}")
    bins: list[list[tuple[list[int], int]]] = []
    room: list[int] = []
    for tokens, start in sorted(usable, key=lambda item: -len(item[0])):
        place = next((i for i, left in enumerate(room) if left >= len(tokens)), None)
        if place is None:
            bins.append([])
            room.append(row_tokens)
            place = len(bins) - 1
        bins[place].append((tokens, start))
        room[place] -= len(tokens)
    return [make_row(i, content, row_tokens) for i, content in enumerate(bins)], len(kept) - len(usable)


def make_row(index: int, content: Sequence[tuple[list[int], int]], row_tokens: int) -> Row:
    """Lay (tokens, prompt_length) documents side by side and pad."""
    tokens = torch.zeros(row_tokens, dtype=torch.int64)
    positions = torch.zeros(row_tokens, dtype=torch.int64)
    documents = torch.full((row_tokens,), PADDING, dtype=torch.int64)
    supervised = torch.zeros(row_tokens, dtype=torch.bool)
    at = 0
    for number, (ids, prompt_length) in enumerate(content):
        end = at + len(ids)
        tokens[at:end] = torch.tensor(ids)
        positions[at:end] = torch.arange(len(ids))
        documents[at:end] = number
        supervised[at + prompt_length : end] = True
        at = end
    return Row(index=index, tokens=tokens, positions=positions, documents=documents, supervised=supervised)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The deterministic order of a run."""

    rows: Sequence[Row]
    seed: int
    rows_per_step: int
    anchors_per_row: int
    block_size: int
    mask_token_id: int
    gamma: float

    def batch(self, step: int) -> Batch:
        """The batch of 0-based ``step``."""
        first = step * self.rows_per_step
        rows = [self.rows[self._row_at(first + i)] for i in range(self.rows_per_step)]
        generator = torch.Generator().manual_seed(_mix(self.seed, 1, step))
        drawn = [choose_anchors(row, self.anchors_per_row, generator) for row in rows]
        return make_batch(rows, drawn, block_size=self.block_size, mask_token_id=self.mask_token_id, gamma=self.gamma)

    def epoch(self, step: int) -> float:
        """Epochs finished before ``step``."""
        return step * self.rows_per_step / len(self.rows)

    def _row_at(self, place: int) -> int:
        epoch, offset = divmod(place, len(self.rows))
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(_mix(self.seed, 2, epoch)))
        return int(order[offset])


def _mix(seed: int, stream: int, counter: int) -> int:
    """A 63-bit seed of its own for each (seed, stream, counter): splitmix64's finaliser over their combination."""
    value = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + counter * 0x8CB92BA72F3D8DD7) & (2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & (2**64 - 1)
    return (value ^ (value >> 31)) & (2**63 - 1)


def count_anchors(rows: Sequence[Row]) -> int:
    """Possible anchors of all rows."""
    return sum(anchor_candidates(row).numel() for row in rows)
