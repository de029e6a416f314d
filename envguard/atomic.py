"""Atomic writes and digests, the only ones in the project.

In: bytes or a callback that fills a directory. Out: a file or directory that is either the old one or the complete new
one, whatever the moment of a crash: temp sibling, length check, fsync, rename, fsync of the parent directory.
It does not lock: two writers of one path both succeed and the later rename wins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CHUNK = 1 << 20  # bytes read at a time when hashing a file


def fsync_dir(path: Path) -> None:
    """Make renames inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data`` atomically and durably.

    Raises:
        OSError: the directory is missing or unwritable, or the disk is full; the old file is untouched then.
    """
    import tempfile

    fd, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    temp = Path(name)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if temp.stat().st_size != len(data):
            raise OSError(f"short write to {temp}: {temp.stat().st_size} of {len(data)} bytes")
        temp.chmod(mode)
        temp.rename(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


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
                    os.fsync(handle.fileno())
            fsync_dir(Path(root))
        temp.chmod(0o755)
        temp.rename(path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    fsync_dir(path.parent)


def sweep(path: Path) -> None:
    """Remove what killed ``new_directory`` calls for ``path`` left; call it under the lock that writers of it hold."""
    import shutil

    for left in path.parent.glob(f".tmp-{path.name}-*"):
        shutil.rmtree(left)


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
