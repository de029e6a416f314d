"""The packs of a directory: finding a blob in them, and writing new ones.

In: a directory. Out: an index of all packs in it, frames and contents, streamed where they are large; or, through a
``PackWriter``, new packs: written under a temporary name, one sync each however many blobs, then renamed.
It deletes nothing but what it wrote itself, and knows neither manifests nor who may write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from cache_tools import blobs, sharing
from cache_tools.blobs import Place
from cache_tools.errors import CorruptError
from cache_tools.plainfile import open_plain
from envguard import atomic, fsops

PACK_BYTES = 128 << 20
"""A pack that has reached so many bytes is sealed and another begun."""
LARGE = 4 << 20
"""Contents from so many bytes on are streamed."""
CHUNK = 1 << 20
OPEN_PACKS = 32
"""Files that a reader holds open at most, beside those that are being read."""
_WRITEBACK_BYTES = 8 << 20


class PackIndex:
    """What the packs of ``folder`` hold; read once, again on ``reload``, and when needed after ``expire``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packs: dict[str, dict[bytes, Place]] = {}
        self._places: dict[bytes, Place] = {}
        self._damaged: dict[str, CorruptError] = {}
        self._expired = False
        self.reload()

    @property
    def packs(self) -> Mapping[str, dict[bytes, Place]]:
        """Pack → what it holds."""
        self._refresh()
        return self._packs

    @property
    def places(self) -> Mapping[bytes, Place]:
        """Digest → where to find it."""
        self._refresh()
        return self._places

    @property
    def damaged(self) -> Mapping[str, CorruptError]:
        """Packs whose index cannot be believed."""
        self._refresh()
        return self._damaged

    def expire(self) -> None:
        """There are new packs; a snapshot, whose process mostly ends then, need not read what it wrote."""
        self._expired = True

    def _refresh(self) -> None:
        if self._expired:
            self.reload()

    def reload(self) -> None:
        """Take in packs that appeared and forget those that went; a pack never changes."""
        names = {name for name in os.listdir(self.folder) if name.endswith(blobs.SUFFIX) and not name.startswith(".")}
        damaged: dict[str, CorruptError] = {}
        packs = {name: found for name, found in self._packs.items() if name in names}
        for name in sorted(names - packs.keys()):
            try:
                packs[name] = self._read_index(self.folder / name)
            except FileNotFoundError:
                continue  # pruned meanwhile
            except CorruptError as error:
                damaged[name] = error
        places: dict[bytes, Place] = {}
        for found in packs.values():
            places.update(found)
        self._packs, self._places, self._damaged, self._expired = packs, places, damaged, False

    def _read_index(self, path: Path) -> dict[bytes, Place]:
        with os.fdopen(open_plain(path), "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            handle.seek(max(0, size - blobs.TAIL_BYTES))
            length = blobs.index_length(handle.read(), size, origin=path)
            handle.seek(size - length)
            return blobs.decode_index(handle.read(), size, origin=path)

    def elsewhere(self, place: Place, digest: bytes) -> Place | None:
        """Another copy of a blob, if a damaged one is not the only one."""
        for name, found in self.packs.items():
            if name != place.pack and digest in found:
                return found[digest]
        return None


class _Pack:
    """An open pack, closed when nobody refers to it any more: another thread may be reading when it is left."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = open_plain(path)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class PackReader:
    """Open packs of an index, the ``OPEN_PACKS`` that were read last; threads may share it."""

    def __init__(self, index: PackIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._open: dict[str, _Pack] = {}

    def frame(self, place: Place) -> bytes:
        """The bytes of a frame; fewer if the pack was cut."""
        pack = self.opened(place.pack)
        return os.pread(pack.fd, place.length, place.offset)

    def parts(self, place: Place) -> Iterator[bytes]:
        """The bytes of a frame, piece by piece."""
        source = _Frame(self.opened(place.pack), place)
        while part := source.read(CHUNK):
            yield part

    def is_intact(self, place: Place) -> bool:
        """Whether a frame is, bit for bit, what was written."""
        digest = hashlib.sha256()
        for part in self.parts(place):
            digest.update(part)
        return digest.digest() == place.frame_sha256

    def chunks(self, place: Place, *, limit: int, origin: Path) -> Iterator[bytes]:
        """The content of a large blob, piece by piece, at most ``limit`` bytes; its digest is for the caller to check.

        Raises:
            CorruptError: it is no zstd frame, or longer.
        """
        source = _Frame(self.opened(place.pack), place)
        total = 0
        try:
            with zstandard.ZstdDecompressor(max_window_size=blobs.MAX_WINDOW).stream_reader(
                cast(BinaryIO, source)
            ) as reader:
                while data := reader.read(CHUNK):
                    total += len(data)
                    if total > limit:
                        raise CorruptError(f"{origin} holds more than the {limit} bytes that belong there")
                    yield data
        except zstandard.ZstdError as error:
            raise CorruptError(f"{origin} is damaged: {error}") from error

    def opened(self, pack: str) -> _Pack:
        """An open pack; it stays readable when another process removes it.

        Raises:
            FileNotFoundError: another process has removed it.
        """
        with self._lock:
            found = self._open.pop(pack, None) or _Pack(self._index.folder / pack)
            self._open[pack] = found
            if len(self._open) > OPEN_PACKS:  # a store has as many packs as there were snapshots
                del self._open[next(iter(self._open))]
            return found

    def close(self) -> None:
        """Close every pack that nobody is reading; the others follow."""
        with self._lock:
            self._open.clear()


class _Frame:
    """One frame of an open pack, to be read from its beginning."""

    def __init__(self, pack: _Pack, place: Place) -> None:
        self._pack = pack
        self._at, self._end = place.offset, place.offset + place.length

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the frame."""
        left = self._end - self._at
        data = os.pread(self._pack.fd, min(size, left) if size >= 0 else left, self._at)
        self._at += len(data)
        return data


class PackWriter:
    """New packs in ``folder``, visible only after ``seal``; for one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._temp: Path | None = None
        self._rows: list[tuple[bytes, bytes, int, int]] = []
        self._unwritten: list[bytes] = []
        self._length = self._written = self._flushed = 0
        self._ready: list[tuple[Path, Path]] = []
        self.added: set[bytes] = set()

    def add(self, digest: bytes, frame: bytes, size: int, frame_sha256: bytes | None = None) -> bool:
        """Append a blob (``frame_sha256``: of ``frame``, if known); False if this writer has it already."""
        if digest in self.added:
            return False
        self._unwritten.append(frame)
        self._append(digest, frame_sha256 or hashlib.sha256(frame).digest(), len(frame), size)
        return True

    def add_chunks(self, expected: Collection[bytes], chunks: Iterator[bytes], size: int) -> bytes | None:
        """Append a large blob from pieces of its content, which must come to ``size`` and an ``expected`` digest.

        Returns:
            The digest; None if this writer has one of them already.

        Raises:
            ValueError: the pieces come to something else; nothing was added.
        """
        if not self.added.isdisjoint(expected):
            return None
        self._write()
        start = self._length
        content, frame = hashlib.sha256(), hashlib.sha256()
        stream = blobs.compressor(large=True).compressobj(size=size)
        try:
            for part in _compressed(stream, chunks, content):
                self._unwritten.append(part)
                self._write()
                frame.update(part)
        except zstandard.ZstdError as error:  # more or fewer bytes than said
            raise self._undo(start, ValueError(str(error))) from error
        digest = content.digest()
        if digest not in expected:
            raise self._undo(start, ValueError("the content is another one"))
        self._append(digest, frame.digest(), self._written - start, size)
        return digest

    def _undo(self, start: int, error: ValueError) -> ValueError:
        os.ftruncate(self._fd, start)
        os.lseek(self._fd, start, os.SEEK_SET)
        self._written = start
        return error

    def _append(self, digest: bytes, frame_sha256: bytes, length: int, size: int) -> None:
        self._rows.append((digest, frame_sha256, length, size))
        self.added.add(digest)
        self._length += length
        if self._length - self._written >= CHUNK:
            self._write()
        if self._length >= PACK_BYTES:
            self._finish()

    def _write(self) -> None:
        """Write what was appended: many small frames at once."""
        if self._temp is None:
            temp = atomic.temp_name(self._folder / "pack")
            mode = sharing.file_mode(self._folder)
            self._fd = fsops.create(temp, mode=mode)
            sharing.open_up(self._fd, mode)
            self._temp = temp
        data = b"".join(self._unwritten)
        self._unwritten = []
        fsops.write(self._fd, data)
        self._written += len(data)
        if self._written - self._flushed > _WRITEBACK_BYTES:
            fsops.start_writeback(self._fd)
            self._flushed = self._written

    def _finish(self) -> None:
        """Write the index of the current pack and make it durable, still under its temporary name."""
        if not self._rows:
            return
        name, index = blobs.encode_index(self._rows)
        self._unwritten.append(index)
        self._write()
        assert self._temp is not None
        fsops.fsync(self._fd)
        size = os.fstat(self._fd).st_size
        if size != self._length + len(index):
            raise OSError(f"short write to {self._temp}: {size} of {self._length + len(index)} bytes")
        os.close(self._fd)
        self._ready.append((self._temp, self._folder / name))
        self._fd, self._temp, self._rows = -1, None, []
        self._length = self._written = self._flushed = 0

    def seal(self) -> list[Path]:
        """Make everything added durable and visible; the new packs."""
        self._finish()
        packs = [pack for _, pack in self._ready]
        while self._ready:
            fsops.rename(*self._ready[0])
            self._ready.pop(0)
        if packs:
            fsops.fsync_dir(self._folder)
        return packs

    def abandon(self) -> None:
        """Remove what is not visible yet."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for temp in (self._temp, *(temp for temp, _ in self._ready)):
            if temp is not None:
                with contextlib.suppress(OSError):  # what cannot be removed is swept by prune
                    fsops.unlink(temp, missing_ok=True)
        self._temp, self._ready = None, []


def _compressed(
    stream: zstandard.ZstdCompressionObj, chunks: Iterator[bytes], content: hashlib._Hash
) -> Iterator[bytes]:
    for chunk in chunks:
        content.update(chunk)
        yield stream.compress(chunk)
    yield stream.flush()
