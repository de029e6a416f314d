"""Target features for a batch: from the running target, or from a cache on disk, with the same values.

In: a ``Batch``. Out: [R, T, N*D]. Features are always computed row by row: each document of the row is run on its own
(right padding is invisible to a causal model), so no document sees another whatever the target's architecture, and a
cached row holds exactly what the online source computes. The cache is one array file and a record with a checksum for
every row; it is complete or absent, and keyed by target, data, taps, packing and dtype.
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
from envguard.atomic import new_directory

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
        rows = [
            row_features(self.target, tokens, documents, self.layer_ids)
            for tokens, documents in zip(batch.tokens, batch.documents, strict=True)
        ]
        return torch.stack(rows)


def row_features(target: Target, tokens: Tensor, documents: Tensor, layer_ids: tuple[int, ...]) -> Tensor:
    """Features [T, N*D] of one packed row, tokens and documents [T]; zeros on padding."""
    num_documents = int(documents.max()) + 1
    places = [torch.nonzero(documents == number).flatten() for number in range(num_documents)]
    # Side by side with right padding on a GPU, which is short of work; one by one on a CPU, where padding costs time.
    groups = [places] if tokens.is_cuda else [[place] for place in places]
    row: Tensor | None = None
    for group in groups:
        longest = max(len(place) for place in group)
        padded = torch.stack([torch.nn.functional.pad(tokens[place], (0, longest - len(place))) for place in group])
        _, features = target.run(padded, layer_ids, use_cache=False)
        if row is None:
            row = features.new_zeros(len(tokens), features.shape[-1])
        for number, place in enumerate(group):
            row[place] = features[number, : len(place)]
    assert row is not None, "a row holds at least one document"
    return row


class CachedFeatures:
    """Reads rows from a cache made by ``build_cache``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            self.record = json.loads((directory / "features.json").read_text())
            self.array = np.load(directory / "features.npy", mmap_mode="r")
            self.dtype = getattr(torch, self.record["dtype"])
            self.checksums: list[int] = self.record["crc32"]
            if self.record["format"] != FORMAT or len(self.checksums) != self.array.shape[0]:
                raise ValueError("its record does not fit its array")
        except (OSError, ValueError, KeyError, AttributeError) as error:
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
            tokens, documents = row.tokens.to(target.device), row.documents.to(target.device)
            bits = row_features(target, tokens, documents, layer_ids).cpu().contiguous().view(_integer(dtype))
            array[i] = bits.numpy().view(storage)
            checksums.append(zlib.crc32(array[i]))
            advance()
        array.flush()
        record = {"format": FORMAT, "dtype": str(dtype).removeprefix("torch."), "crc32": checksums}
        (temp / "features.json").write_text(json.dumps(record) + "\n")


def _integer(dtype: torch.dtype) -> torch.dtype:
    return {2: torch.int16, 4: torch.int32}[dtype.itemsize]
