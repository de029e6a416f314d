"""One file's content as a blob: compressed, and checkable down to the last bit.

In: bytes. Out: a zstd frame (with content size and checksum) followed by a skippable frame that holds the frame's own
sha256; ``zstd -d`` reads it as it is. The digest of the content alone would not do: a zstd frame has bits that change
nothing when they flip, and a cache that rots should be noticed before the second bit goes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import zstandard

from cache_tools.errors import CorruptError

LEVEL = 3
_SKIPPABLE = bytes.fromhex("502a4d18") + (32).to_bytes(4, "little")
"""Magic number and length of the frame that readers of zstd skip (RFC 8878, 3.1.2)."""
TRAILER_BYTES = len(_SKIPPABLE) + 32


def encode(data: bytes) -> bytes:
    """The blob of ``data``."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
    frame = compressor.compress(data)
    return frame + _SKIPPABLE + hashlib.sha256(frame).digest()


def is_intact(blob: bytes) -> bool:
    """Whether ``blob`` is, bit for bit, something that ``encode`` wrote."""
    return blob[-TRAILER_BYTES:] == _SKIPPABLE + hashlib.sha256(blob[:-TRAILER_BYTES]).digest()


def decode(blob: bytes, *, sha256: str, limit: int, origin: Path) -> bytes:
    """The content of ``blob``, which must hash to ``sha256`` and have at most ``limit`` bytes.

    Memory use is bounded by ``limit`` whatever the blob claims. ``origin`` is the file named in the error.

    Raises:
        CorruptError: any bit differs from what ``encode`` wrote.
    """
    if not is_intact(blob):
        raise CorruptError(f"{origin} is damaged: it does not match its own checksum")
    try:
        frame = blob[:-TRAILER_BYTES]
        claimed = zstandard.get_frame_parameters(frame).content_size
        if claimed > limit:
            raise CorruptError(f"{origin} claims {claimed} bytes where at most {limit} belong")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"{origin} is damaged: {error}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptError(f"{origin} is damaged: its content does not hash to its name")
    return data
