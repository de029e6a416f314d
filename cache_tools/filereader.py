"""Reading one file of a live cache into a store.

In: an entry of a scan, a ``BlobWriter``. Out: a manifest entry, or why the file is left out: what changes while it is
read, is empty, cut, or does not hash to its name. A small file is read once; a large one in pieces, and twice (for its
digest, then if it is new) where its name does not tell the digest. It makes nothing visible.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools import stamps
from cache_tools.blobwriter import BlobWriter
from cache_tools.bundled import Read, kernels_in, without_kernels
from cache_tools.elf import elf_problem
from cache_tools.kinds import GRAPHS, Kind, digest_matches, is_self_named, name_matches, named_digests
from cache_tools.live import not_being_built
from cache_tools.manifest import MAX_ENTRY_BYTES, ManifestEntry
from cache_tools.packs import CHUNK, LARGE
from cache_tools.relocate import is_group, roots_of, tokenise
from cache_tools.scan import Entry
from cache_tools.stamps import Status

if TYPE_CHECKING:
    from cache_tools.secrets import Scanner

ATTEMPTS = 3
RETRY_SECONDS = 0.02
"""Writers rename complete files into place, so a file that changes under us has settled by then."""
_GONE = {errno.ENOENT: "vanished", errno.ENOTDIR: "vanished", errno.ELOOP: "link", errno.ENXIO: "not a file"}
"""What it means when a file that was listed cannot be opened; ENXIO: a socket."""


class FileReader:
    """Reads files of one cache directory into one writer; large ones in any thread."""

    def __init__(self, writer: BlobWriter, cache_dir: Path, scanner: Scanner | None) -> None:
        self._writer, self._cache_dir, self._scanner = writer, cache_dir, scanner
        self._roots = roots_of(cache_dir)
        self._looked_at: dict[str, tuple[Status, frozenset[str]]] = {}
        """Graph entries in which the scanner has looked for secrets; their status then, and the kernels they held."""
        self.read: dict[str, Status] = {}
        """Path → the status that a file had all the while it was read."""
        self.new: list[str] = []
        """Paths whose content the store had not."""

    def kernels(self, entry: Entry) -> frozenset[str] | None:
        """The kernels that a graph entry holds; looks for secrets on the way, unless it has done so.

        None if the file cannot be read as it was listed, which ``keep`` judges.
        """
        status, known = self._looked_at.get(entry.path, (None, frozenset()))
        if status == entry.status:
            return known
        if entry.size > MAX_ENTRY_BYTES:
            return None
        with contextlib.suppress(OSError):
            fd = _open(f"{self._cache_dir}/{entry.path}")
            try:
                found = self._look(entry, lambda at, length: os.pread(fd, length, at), entry.size)
                if stamps.status_of(os.fstat(fd)) != entry.status:
                    return None
            finally:
                os.close(fd)
            self._looked_at[entry.path] = entry.status, found
            return found
        return None

    def _look(self, entry: Entry, read: Read, size: int) -> frozenset[str]:
        text = without_kernels(read, size)
        return kernels_in(self._scanner.through(entry.path, entry.kind, text) if self._scanner else text)

    def _has_looked_at(self, entry: Entry, status: Status) -> bool:
        return self._looked_at.get(entry.path, (None,))[0] == status

    def fetch(self, entry: Entry) -> tuple[bytes, bytes] | None:
        """Content and sha256 of a small graph entry as it was listed, for ``keep_fetched``; in any thread.

        None where it is not, or cannot be read: ``keep`` judges that.
        """
        with contextlib.suppress(OSError):
            fd = _open(f"{self._cache_dir}/{entry.path}")
            try:
                data = _read(fd, entry.size)
                if len(data) == entry.size and _is_settled(fd, entry.status):
                    return data, hashlib.sha256(data).digest()
            finally:
                os.close(fd)
        return None

    def keep_fetched(self, entry: Entry, data: bytes, digest: bytes) -> ManifestEntry | str:
        """``keep`` for what ``fetch`` has read."""
        return self._keep_graph(entry, data, digest, entry.status)

    def keep(self, entry: Entry) -> ManifestEntry | str:
        """Store one file, or say why it is left out."""
        if entry.size > MAX_ENTRY_BYTES:
            return "too large"
        if not entry.path.endswith(".so"):
            return self._keep_settled(entry)
        with not_being_built(self._cache_dir, entry.path) as idle:
            return self._keep_settled(entry) if idle else "being built"

    def _keep_settled(self, entry: Entry) -> ManifestEntry | str:
        path = f"{self._cache_dir}/{entry.path}"
        expected = entry.status  # since it was listed
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(RETRY_SECONDS)
            try:
                fd = _open(path)
            except OSError as error:
                if reason := _GONE.get(error.errno or 0):
                    return reason
                raise
            try:
                if attempt:
                    status = os.fstat(fd)
                    expected = stamps.status_of(status)
                    if not stat.S_ISREG(status.st_mode):
                        return "not a file"
                    if expected[1] > MAX_ENTRY_BYTES:
                        return "too large"
                if expected[1] >= LARGE and entry.kind is not Kind.SOURCE and not is_group(entry.path):
                    outcome = self._large(entry, fd, expected)
                else:
                    outcome = self._small(entry, fd, expected)
            except OSError as error:
                if error.errno not in (errno.EISDIR, errno.EAGAIN, errno.ESPIPE):  # a folder or a pipe by now
                    raise
                outcome = None
            finally:
                os.close(fd)
            if outcome is not None:
                return outcome
        return "changing"

    def _small(self, entry: Entry, fd: int, expected: Status) -> ManifestEntry | str | None:
        """None if the file changes."""
        data = _read(fd, expected[1])
        if not _is_settled(fd, expected) or len(data) != expected[1]:
            return None
        if not data:
            return "empty"
        if entry.path.endswith(".so") and elf_problem(io.BytesIO(data), len(data)):
            return "cut"
        if (
            entry.kind is Kind.SOURCE
            and is_self_named(entry.path, entry.kind)
            and not name_matches(entry.path, entry.kind, data)
        ):
            return "damaged"
        if is_group(entry.path):
            moved = tokenise(data, self._roots)
            if not moved:
                return "points outside"
            data = moved
        digest = hashlib.sha256(data).digest()
        if entry.kind in GRAPHS:
            return self._keep_graph(entry, data, digest, expected)
        if self._scanner:
            self._scanner.look(entry.path, entry.kind, data)
        new = self._writer.add(data, digest)
        return self._kept(entry, digest, len(data), expected, new=new)

    def _keep_graph(self, entry: Entry, data: bytes, digest: bytes, status: Status) -> ManifestEntry | str:
        if not digest_matches(entry.path, digest):
            return "damaged"
        if not self._has_looked_at(entry, status):
            found = self._look(entry, lambda at, length: data[at : at + length], len(data))
            self._looked_at[entry.path] = status, found
        new = self._writer.add(data, digest)
        return self._kept(entry, digest, len(data), status, new=new)

    def _large(self, entry: Entry, fd: int, expected: Status) -> ManifestEntry | str | None:
        """None if the file changes."""
        size = expected[1]
        if entry.path.endswith(".so"):
            with os.fdopen(os.dup(fd), "rb") as handle:
                if elf_problem(handle, size):
                    return "cut"
        try:
            streamed = self._streamed(entry, fd, size, looked_at=self._has_looked_at(entry, expected))
        except ValueError:  # it changed between two readings
            return None
        if not _is_settled(fd, expected):
            return None
        if streamed is None:
            return "damaged"
        digest, new = streamed
        return self._kept(entry, digest, size, expected, new=new)

    def _streamed(self, entry: Entry, fd: int, size: int, *, looked_at: bool) -> tuple[bytes, bool] | None:
        """Digest, and whether the store had it not; None if it is not what the name says.

        A graph entry's name tells the digest, so that one reading is enough where the store has it not.

        Raises:
            ValueError: two readings differ.
        """
        if looked_at:
            with contextlib.suppress(ValueError):
                if digest := self._writer.add_chunks(_chunks(fd), named_digests(entry.path), size):
                    return digest, True
        scanner = None if looked_at else self._scanner
        content = hashlib.sha256()
        for chunk in scanner.through(entry.path, entry.kind, _chunks(fd)) if scanner else _chunks(fd):
            content.update(chunk)
        digest = content.digest()
        if not _is_named_by(entry, digest):
            return None
        return digest, self._writer.add_chunks(_chunks(fd), (digest,), size) is not None

    def _kept(self, entry: Entry, digest: bytes, size: int, status: Status, *, new: bool) -> ManifestEntry:
        self.read[entry.path] = status
        if new:
            self.new.append(entry.path)
        return ManifestEntry(entry.path, entry.kind, size, digest.hex(), entry.executable)


def _open(path: str) -> int:
    # NONBLOCK: what was a file when it was listed may be a pipe by now, which would wait for a writer.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read(fd: int, size: int) -> bytes:
    """The content, of ``size`` bytes; fewer if it was cut. What was appended meanwhile shows in its status."""
    data = os.read(fd, size)
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data


def _chunks(fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(fd, CHUNK, offset):
        offset += len(chunk)
        yield chunk


def _is_settled(fd: int, expected: Status) -> bool:
    """Whether the file was the same all the while and a write from now on would change its status."""
    same = stamps.status_of(os.fstat(fd)) == expected
    return same and not 0 <= time.time_ns() - expected[2] < stamps.TICK_NS


def _is_named_by(entry: Entry, digest: bytes) -> bool:
    return entry.kind not in GRAPHS or digest_matches(entry.path, digest)
