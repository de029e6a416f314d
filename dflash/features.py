"""Target features for a batch: from the running target, or from a cache on disk, with the same values.

In: a ``Batch``. Out: [R, T, N*D]. Each document is run as a sequence of its own (right padding is invisible to a causal
model), so no document sees another whatever the target's architecture. On a CPU a cached row holds bit for bit what the
online source computes; on a GPU both round in products of different shapes. The cache is one array file and a record
with a checksum for every row; it is complete or absent, and keyed by target, data, taps, packing and dtype.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from dflash.batch import Batch, Row
from dflash.console import stage
from dflash.errors import InputError, RunError
from dflash.target import Target
from envguard.atomic import new_directory, sweep

FORMAT = 1


class FeatureSource(Protocol):
    """Where features come from."""

    def features(self, batch: Batch) -> Tensor:
        """[R, T, N*D] for the batch's rows, on the batch's device."""
        ...


class OnlineFeatures:
    """Runs the target in every step."""

    def __init__(self, target: Target, layer_ids: tuple[int, ...]) -> None:
        self.target = target
        self.layer_ids = layer_ids

    def features(self, batch: Batch) -> Tensor:
        return packed_features(self.target, batch.tokens, batch.documents, self.layer_ids)


def packed_features(target: Target, tokens: Tensor, documents: Tensor, layer_ids: tuple[int, ...]) -> Tensor:
    """Features [R, T, N*D] of packed rows, tokens and documents [R, T] on the target's device; zeros on padding."""
    spans = document_spans(documents.cpu())
    # Side by side with right padding on a GPU, which is short of work; one by one on a CPU, where padding costs.
    groups = [spans] if tokens.is_cuda else [[span] for span in spans]
    flat_tokens = tokens.flatten()
    flat: Tensor | None = None
    for group in groups:
        longest = max(length for _, length in group)
        offsets = torch.arange(longest)
        starts, lengths = torch.tensor(group).T[:, :, None]  # each [documents, 1]
        places = (starts + offsets.clamp(max=lengths - 1)).to(tokens.device)  # padding repeats the last token
        _, features = target.run(flat_tokens[places], layer_ids, use_cache=False)
        if flat is None:
            flat = features.new_zeros(tokens.numel(), features.shape[-1])
        inside = (offsets < lengths).to(tokens.device)
        flat[places[inside]] = features[inside]
    assert flat is not None, "a row holds at least one document"
    return flat.view(*tokens.shape, -1)


def document_spans(documents: Tensor) -> list[tuple[int, int]]:
    """(start in the flattened rows, length) of every document of [R, T] document numbers."""
    spans = []
    for row, numbers in enumerate(documents):
        lengths = torch.bincount(numbers[numbers >= 0]).tolist()
        start = row * len(numbers)
        for length in lengths:
            spans.append((start, length))
            start += length
    return spans


class CachedFeatures:
    """Reads rows from a cache made by ``build_cache``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            self.record = json.loads((directory / "features.json").read_text())
            self.array = np.load(directory / "features.npy", mmap_mode="r")
            self.dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.record["dtype"]]
            self.checksums: list[int] = self.record["crc32"]
            fits = self.array.ndim == 3 and self.array.itemsize == self.dtype.itemsize
            if self.record["format"] != FORMAT or not fits or len(self.checksums) != self.array.shape[0]:
                raise ValueError("its record does not fit its array")
        except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RecursionError) as error:
            raise InputError(
                f"{directory}: damaged feature cache: {error}; delete the directory to compute it again"
            ) from None

    def features(self, batch: Batch) -> Tensor:
        return torch.stack([self.row(index) for index in batch.rows]).to(batch.tokens.device)

    def row(self, index: int) -> Tensor:
        """[T, N*D] of one row.

        Raises:
            RunError: the row's bytes differ from their checksum.
        """
        raw = np.array(self.array[index])
        if zlib.crc32(raw) != self.checksums[index]:
            raise RunError(
                f"{self.directory}/features.npy: row {index} is damaged; delete the directory to compute it again"
            )
        return torch.from_numpy(raw).view(self.dtype)


def cache_key(target_fingerprint: str, rows: Sequence[Row], layer_ids: tuple[int, ...], dtype: torch.dtype) -> str:
    """Hex key of a feature cache: everything its values depend on."""
    digest = hashlib.sha256(f"{FORMAT} {target_fingerprint} {layer_ids} {dtype} {len(rows)}\n".encode())
    for row in rows:
        digest.update(row.tokens.numpy().tobytes())
        digest.update(row.documents.numpy().tobytes())
    return digest.hexdigest()[:24]


def cache_bytes(rows: Sequence[Row], feature_size: int, dtype: torch.dtype) -> int:
    """Bytes on disk of a cache with ``feature_size`` = N*D values a token."""
    return len(rows) * len(rows[0].tokens) * feature_size * dtype.itemsize


def build_cache(target: Target, rows: Sequence[Row], layer_ids: tuple[int, ...], directory: Path) -> CachedFeatures:
    """Compute every row once, into ``directory``; one process works, others wait and read.

    Raises:
        RunError: the disk is too small.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        sweep(directory)
        if not directory.is_dir():
            _compute(target, rows, layer_ids, directory)
    return CachedFeatures(directory)


def _compute(target: Target, rows: Sequence[Row], layer_ids: tuple[int, ...], directory: Path) -> None:
    dtype = target.embedding_weight.dtype
    size = len(layer_ids) * target.config.hidden_size
    needed, free = cache_bytes(rows, size, dtype), shutil.disk_usage(directory.parent).free
    if needed > free:
        raise RunError(f"{directory.parent}: the feature cache needs {needed >> 20} MiB, {free >> 20} MiB are free")
    storage = np.dtype(f"u{dtype.itemsize}")  # numpy has no bfloat16: the bits travel as unsigned integers
    with new_directory(directory) as temp, stage(f"target features of {len(rows)} rows", steps=len(rows)) as advance:
        shape = (len(rows), len(rows[0].tokens), size)
        array = np.lib.format.open_memmap(temp / "features.npy", mode="w+", dtype=storage, shape=shape)
        checksums = []
        for i, row in enumerate(rows):
            tokens, documents = row.tokens[None].to(target.device), row.documents[None].to(target.device)
            features = packed_features(target, tokens, documents, layer_ids)[0]
            bits = features.cpu().contiguous().view(_integer(dtype))
            array[i] = bits.numpy().view(storage)
            checksums.append(zlib.crc32(array[i]))
            advance()
        array.flush()
        record = {"format": FORMAT, "dtype": str(dtype).removeprefix("torch."), "crc32": checksums}
        (temp / "features.json").write_text(json.dumps(record) + "\n")


def _integer(dtype: torch.dtype) -> torch.dtype:
    return {2: torch.int16, 4: torch.int32}[dtype.itemsize]
