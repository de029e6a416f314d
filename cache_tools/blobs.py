"""The pack: many blobs (contents of files, compressed) in one file that is checkable down to the last bit.

    zstd frame | zstd frame | … | skippable frame: for each blob its content's sha256, its frame's sha256, two lengths

In: frames and digests, or the bytes of a pack. Out: the index of a pack, or the ``Place`` of a blob, or its content. A
pack is named by the sha256 of its index, which names each frame's sha256: a zstd frame has bits that change nothing
when they flip, and a cache that rots should be noticed before the second bit goes. ``zstd -d`` reads a pack as it is.
It opens no file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import zstandard

from cache_tools.errors import CorruptError

PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    1, strategy=zstandard.STRATEGY_FAST, window_log=18, hash_log=12, min_match=7, write_content_size=True
)
"""Level 1 with longer matches and a table that stays in the first cache: a tenth faster than level 1 and 4 % larger."""
LARGE_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(1, write_content_size=True)
"""For contents of many megabytes, such as graph entries with their kernels: a larger table pays (a fifth smaller)."""
AGAIN = "take the snapshot again, or copy the store again"
"""What helps against a damaged blob."""
SUFFIX = ".pack"
MAX_WINDOW = 8 << 20
"""Bytes of history that a frame may ask of its reader; ours ask for up to 512 KB."""
_SKIPPABLE = bytes.fromhex("502a4d18")
"""The frame that readers of zstd skip (RFC 8878, 3.1.2)."""
_ROW = struct.Struct("<32s32sQQ")
_TAIL = struct.Struct("<Q8s")
_MAGIC = b"DFPACK\x00\x02"
TAIL_BYTES = _TAIL.size


class Place(NamedTuple):
    """Where one blob lies. (Positional: there is one for each of up to a million blobs.)"""

    pack: str
    """File name."""
    offset: int
    length: int
    """Bytes of the frame."""
    size: int
    """Bytes of the content."""
    frame_sha256: bytes


def compressor(*, large: bool = False) -> zstandard.ZstdCompressor:
    """A compressor for any number of contents; not to be shared among threads."""
    return zstandard.ZstdCompressor(compression_params=LARGE_PARAMETERS if large else PARAMETERS)


def encode_index(rows: Iterable[tuple[bytes, bytes, int, int]]) -> tuple[str, bytes]:
    """The name of the pack whose frames are ``rows`` (content sha256, frame sha256, frame length, content size), and
    the bytes that follow its frames."""
    packed = [_ROW.pack(*row) for row in rows]
    payload = b"".join(packed) + _TAIL.pack(len(packed), _MAGIC)
    return hashlib.sha256(payload).hexdigest() + SUFFIX, _SKIPPABLE + len(payload).to_bytes(4, "little") + payload


def index_length(tail: bytes, size: int, *, origin: Path) -> int:
    """Bytes of the index of a pack of ``size`` bytes that ends in ``tail`` (``TAIL_BYTES`` of it).

    Raises:
        CorruptError: it does not end as a pack does.
    """
    count, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    length = 8 + int(count) * _ROW.size + _TAIL.size
    if magic != _MAGIC or count == 0 or length > size:
        raise CorruptError(f"{origin} is damaged or cut: it does not end as a pack does")
    return length


def decode_index(index: bytes, size: int, *, origin: Path) -> dict[bytes, Place]:
    """Content digest → place, from the index of a pack of ``size`` bytes.

    Raises:
        CorruptError: any bit differs from what ``encode_index`` wrote, or the pack has another length.
    """
    payload = index[8:]
    header = _SKIPPABLE + len(payload).to_bytes(4, "little")
    if index[:8] != header or hashlib.sha256(payload).hexdigest() + SUFFIX != origin.name:
        raise CorruptError(f"{origin} is damaged: its index does not hash to its name")
    places: dict[bytes, Place] = {}
    offset = 0
    for digest, frame, length, content in _ROW.iter_unpack(payload[: -_TAIL.size]):
        places[digest] = Place(origin.name, offset, length, content, frame)
        offset += length
    if offset + len(index) != size:
        raise CorruptError(f"{origin} is damaged: it has {size} bytes where {offset + len(index)} belong")
    return places


def longest(size: int) -> int:
    """Bytes that no frame of ``size`` bytes of content exceeds; one that does claims what fills the memory."""
    return size + size // 128 + 1024


def is_intact(frame: bytes, place: Place) -> bool:
    """Whether ``frame`` is, bit for bit, what was written."""
    return hashlib.sha256(frame).digest() == place.frame_sha256


def decompressor() -> zstandard.ZstdDecompressor:
    """A decompressor for any number of frames; not to be shared among threads."""
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)


def decode(
    frame: bytes, *, sha256: str, limit: int, origin: Path, reader: zstandard.ZstdDecompressor | None = None
) -> bytes:
    """The content of ``frame``, which must hash to ``sha256`` and have at most ``limit`` bytes.

    Memory use is bounded by ``limit`` whatever the frame claims. ``origin`` is the file named in the error.

    Raises:
        CorruptError: it is something else.
    """
    try:
        claimed = zstandard.get_frame_parameters(frame).content_size
        if claimed > limit:
            raise CorruptError(f"{origin} claims {claimed} bytes for blob {sha256[:12]} where at most {limit} belong")
        data = (reader or decompressor()).decompress(frame, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"{origin} is damaged at blob {sha256[:12]}: {error}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptError(f"{origin} is damaged: the content of blob {sha256[:12]} does not hash to its name: {AGAIN}")
    return data
