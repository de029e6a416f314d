"""Atomic writes and digests, the only ones in the project.

In: bytes or a callback that fills a directory. Out: a file or directory that is either the old one or the complete new
one, whatever the moment of a crash: temp sibling, length check, fsync, rename, fsync of the parent directory.
It does not lock: two writers of one path both succeed and the later rename wins.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from envguard import fsops

CHUNK = 1 << 20  # bytes read at a time when hashing a file


def fsync_dir(path: Path) -> None:
    """Make renames inside ``path`` durable."""
    fsops.fsync_dir(path)


TEMP_NAME = re.compile(r"\.tmp-[0-9a-f]{16}")


def temp_name(path: Path) -> Path:
    """A sibling of ``path`` to write first, known as a leftover by its ``TEMP_NAME`` if its writer is killed."""
    return path.parent / f".tmp-{os.urandom(8).hex()}"


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data`` atomically and durably.

    Raises:
        OSError: the directory is missing or unwritable, or the disk is full; the old file is untouched then.
    """
    temp = temp_name(path)
    fd = fsops.create(temp, mode=0o600)
    try:
        with naming(path):
            try:
                fsops.write(fd, data)
                os.fchmod(fd, mode)
                fsops.fsync(fd)
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        if size != len(data):
            raise OSError(f"short write to {temp}: {size} of {len(data)} bytes")
        fsops.rename(temp, path)
    except BaseException:
        fsops.unlink(temp, missing_ok=True)
        raise
    fsops.fsync_dir(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An ``OSError`` of the block that names no file, as those of a descriptor do, names ``path``."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """``write_bytes`` for UTF-8 text."""
    write_bytes(path, text.encode(), mode=mode)


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling directory; on a clean exit fsync all of it and rename it to ``path``.

    Raises:
        FileExistsError: ``path`` exists (a directory with content is never replaced).
    """
    import shutil
    import tempfile

    if path.exists():
        raise FileExistsError(f"{path} exists")
    temp = Path(tempfile.mkdtemp(prefix=f".tmp-{path.name}-", dir=path.parent))
    try:
        yield temp
        for root, _, files in os.walk(temp):
            for file in files:
                with open(os.path.join(root, file), "rb") as handle:
                    fsops.fsync(handle.fileno())
            fsops.fsync_dir(root)
        temp.chmod(0o755)
        fsops.rename(temp, path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    fsops.fsync_dir(path.parent)


def sweep(path: Path) -> None:
    """Remove what killed ``new_directory`` calls for ``path`` left; call it under the lock that writers of it hold."""
    for left in path.parent.glob(f".tmp-{path.name}-*"):
        fsops.remove_tree(left)


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of ``data``."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's content, read in chunks."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
