"""A store of snapshots: content-addressed blobs, manifests and names, each written once.

    config.json              {"format":2}
    blobs/<sha256>.pack      contents, see blobs.py; named by the sha256 of the pack's index
    snapshots/<id>.json      canonical manifest, named by its sha256
    snapshots/<id>.sig       who vouches for it, see signing.py; optional
    refs/<name>              the id that a human name stands for, and a newline
    pins/<id>                empty: ``prune`` keeps that snapshot
    leases/*.lock            who is using what, see lease.py
    stamps/*.stamp           what may be lost, see stamps.py

In: bytes, manifests, names. Out: the same, verified on every read. A snapshot becomes visible last: blobs, manifest,
name. Whatever the moment of a crash, what is listed is complete. It needs neither hard links nor locks of its file
system. It deletes nothing; see prune.py.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cache_tools import blobs, lease, manifest
from cache_tools.blobs import Place
from cache_tools.blobwriter import BlobWriter
from cache_tools.errors import CorruptError
from cache_tools.manifest import ID, Manifest
from cache_tools.packs import LARGE, PackIndex, PackReader
from cache_tools.paths import STORE_VARIABLE
from cache_tools.plainfile import read_plain
from cache_tools.sharing import file_mode
from envguard import atomic, fsops
from envguard.errors import UsageError

log = logging.getLogger(__name__)

FORMAT = 2
CONFIG = b'{"format":2}'
_FORMAT = re.compile(rb'\s*\{\s*"format"\s*:\s*(\d{1,9})\s*\}\s*')
_MAX_CONFIG_BYTES = 64
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_MANIFEST_BYTES = 256 << 20
_PREFIX = re.compile(r"[0-9a-f]{4,64}")


class Store:
    """An existing store; see ``open_store`` and ``create_store``."""

    def __init__(self, *, root: Path) -> None:
        self.root = root
        self._local = threading.local()

    @functools.cached_property
    def index(self) -> PackIndex:
        """Where blobs are; ``index.reload()`` takes in what other processes did."""
        return PackIndex(self.root / "blobs")

    @functools.cached_property
    def _reader(self) -> PackReader:
        return PackReader(self.index)

    def close(self) -> None:
        """Close open packs; they are opened again when needed."""
        self._reader.close()

    def blob_path(self, sha256: str) -> Path:
        """The file that holds the blob of that digest; where there is none, ``blobs/<sha256>``, for messages."""
        place = self.index.places.get(bytes.fromhex(sha256))
        return self.root / "blobs" / (place.pack if place else sha256)

    def manifest_path(self, id_: str) -> Path:
        """Where the manifest of that snapshot is, or would be."""
        return self.root / "snapshots" / f"{id_}.json"

    def signature_path(self, id_: str) -> Path:
        """Where the signature of that snapshot is, or would be; see signing.py."""
        return self.root / "snapshots" / f"{id_}.sig"

    def ref_path(self, name: str) -> Path:
        """Where the name is kept."""
        return self.root / "refs" / name

    @contextlib.contextmanager
    def adding(self) -> Iterator[BlobWriter]:
        """A writer of blobs; what it holds is visible after its ``commit``. Nothing is pruned meanwhile.

        Raises:
            OSError: the disk is full or the store unwritable; nothing half written is visible then.
        """
        with lease.writing(self.root):
            self.index.reload()
            writer = BlobWriter(self)
            try:
                yield writer
            finally:
                writer.close()

    def read_blob(self, sha256: str, *, limit: int) -> bytes:
        """The content with that digest, of at most ``limit`` bytes.

        Raises:
            CorruptError: it is missing or damaged; the message names the file.
        """
        return b"".join(self.blob_chunks(sha256, limit=limit))

    def blob_chunks(self, sha256: str, *, limit: int) -> Iterator[bytes]:
        """``read_blob`` piece by piece, so that memory stays small: believe nothing before the last piece.

        Raises:
            CorruptError: as ``read_blob``; perhaps only after the last piece.
        """
        digest = bytes.fromhex(sha256)
        place = self._find(digest)
        origin = self.root / "blobs" / place.pack
        if place.length < LARGE and limit < LARGE:
            yield self._whole(digest, place, limit)
            return
        if (other := self.index.elsewhere(place, digest)) and not self._reader.is_intact(place):
            log.warning("%s is damaged, another pack has what is needed", origin)
            place, origin = other, self.root / "blobs" / other.pack
        content = hashlib.sha256()
        for chunk in self._reader.chunks(place, limit=limit, origin=origin):
            content.update(chunk)
            yield chunk
        if content.digest() != digest:
            raise CorruptError(
                f"{origin} is damaged: the content of blob {sha256[:12]} does not hash to its name: {blobs.AGAIN}"
            )

    def frame(self, digest: bytes, *, limit: int) -> bytes:
        """The frame of the blob with that digest, as it lies in its pack; empty if it is too long for ``limit`` bytes.

        Raises:
            CorruptError: no readable pack holds it.
        """
        place = self._find(digest)
        return self._reader.frame(place) if place.length <= blobs.longest(limit) else b""

    def _whole(self, digest: bytes, place: Place, limit: int) -> bytes:
        origin = self.root / "blobs" / place.pack
        if not hasattr(self._local, "reader"):
            self._local.reader = blobs.decompressor()
        try:
            frame = self._reader.frame(place)
            return blobs.decode(frame, sha256=digest.hex(), limit=limit, origin=origin, reader=self._local.reader)
        except CorruptError:
            other = self.index.elsewhere(place, digest)
            if other is None:
                raise
            log.warning("%s is damaged, another pack has what is needed", origin)
            origin = self.root / "blobs" / other.pack
            return blobs.decode(self._reader.frame(other), sha256=digest.hex(), limit=limit, origin=origin)

    def _find(self, digest: bytes) -> Place:
        for attempt in range(2):
            place = self.index.places.get(digest)
            try:
                if place is not None:
                    self._reader.opened(place.pack)
                    return place
            except FileNotFoundError:
                pass  # prune has moved what it kept into another pack
            if attempt == 0:
                self.index.reload()
        raise self.missing(digest.hex())

    def missing(self, sha256: str) -> CorruptError:
        """The error for a blob that no readable pack holds."""
        for error in self.index.damaged.values():
            return error
        path = self.root / "blobs" / sha256
        return CorruptError(f"{path} is missing, no pack holds it: the store is incomplete; was the copy finished?")

    def add_manifest(self, content: Manifest, *, before: Callable[[str], None] = lambda id_: None) -> tuple[str, bool]:
        """Keep a manifest whose blobs are all there; its id, and whether it is new.

        ``before`` is called with the id while nobody can see the snapshot yet.

        Raises:
            CorruptError: it could not be read back, for instance since two of its paths differ only in case.
        """
        data = manifest.to_bytes(content)
        manifest.check_new(content)  # never write what would not be read
        id_ = manifest.id_of(data)
        before(id_)
        path = self.manifest_path(id_)
        if path.exists():
            return id_, False
        atomic.write_bytes(path, data, mode=file_mode(path.parent))
        return id_, True

    def read_manifest(self, id_: str) -> Manifest:
        """The manifest of snapshot ``id_``.

        Raises:
            CorruptError: it is missing, changed, or nothing that may be acted upon.
        """
        return manifest.from_bytes(self.manifest_bytes(id_), origin=str(self.manifest_path(id_)))

    def manifest_bytes(self, id_: str) -> bytes:
        """The bytes of a manifest, which hash to ``id_``: what was written, if not what may be acted upon.

        Raises:
            CorruptError: it is missing or changed.
        """
        path = self.manifest_path(id_)
        try:
            data = read_plain(path, limit=MAX_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise CorruptError(f"{path} is missing: the store is incomplete") from error
        if manifest.id_of(data) != id_:
            raise CorruptError(f"{path} does not hash to its name: it was changed after it was written; delete it")
        return data

    def set_ref(self, name: str, id_: str) -> None:
        """Let ``name`` stand for snapshot ``id_``; an older meaning is replaced."""
        path = self.ref_path(check_name(name))
        atomic.write_text(path, f"{id_}\n", mode=file_mode(path.parent))

    def read_ref(self, name: str) -> str:
        """The id that ``name`` stands for.

        Raises:
            CorruptError: the file is named like an id, is not one id and a newline, or names what is not there.
        """
        path = self.ref_path(name)
        if ID.fullmatch(name):
            raise CorruptError(f"{path} is named like a snapshot id, and an id is no name: delete it")
        data = read_plain(path, limit=65)
        if len(data) != 65 or not data.endswith(b"\n") or not ID.fullmatch(data[:-1].decode("ascii", "replace")):
            raise CorruptError(f"{path} does not hold a snapshot id: delete it and name the snapshot again")
        id_ = data[:-1].decode()
        if not self.manifest_path(id_).exists():
            raise CorruptError(f"{path} names snapshot {id_[:12]}, which is not there: delete it")
        return id_

    def names(self) -> tuple[str, ...]:
        """Every human name, sorted."""
        return tuple(sorted(path.name for path in (self.root / "refs").iterdir() if NAME.fullmatch(path.name)))

    def ids(self) -> tuple[str, ...]:
        """Every snapshot, sorted by id."""
        found = (path.stem for path in (self.root / "snapshots").iterdir() if path.suffix == ".json")
        return tuple(sorted(stem for stem in found if ID.fullmatch(stem)))

    def resolve(self, name_or_id: str) -> str:
        """The id that a name, an id or a unique beginning of one (4 digits or more) stands for.

        A whole id stands for itself, whatever the names: they are not signed.

        Raises:
            UsageError: nothing or more than one thing is meant; the message lists what there is.
            CorruptError: the name's file is damaged.
        """
        if NAME.fullmatch(name_or_id) and not ID.fullmatch(name_or_id) and self.ref_path(name_or_id).exists():
            with contextlib.suppress(FileNotFoundError):  # pruned in this very moment
                return self.read_ref(name_or_id)
        matching = self._beginning_with(name_or_id)
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise UsageError(f"{name_or_id} begins {len(matching)} snapshot ids: give more digits")
        known = ", ".join(self.names()) or "none yet; make one with: dflash cache snapshot --name NAME"
        raise UsageError(f"{self.root} has no snapshot {name_or_id!r}; names: {known}")

    def check_new_name(self, name: str) -> None:
        """Refuse a name that would be taken for the beginning of an id.

        Raises:
            UsageError: it begins the id of a snapshot, or may name none at all.
        """
        if begun := self._beginning_with(check_name(name)):
            raise UsageError(f"{name!r} begins the id of snapshot {begun[0]}: give a name that cannot be taken for it")

    def _beginning_with(self, text: str) -> list[str]:
        """The ids that ``text`` begins, if it is long enough to."""
        return [id_ for id_ in self.ids() if id_.startswith(text)] if _PREFIX.fullmatch(text) else []


def check_name(name: str) -> str:
    """``name`` if it may name a snapshot.

    Raises:
        UsageError: it may not.
    """
    if not NAME.fullmatch(name) or ID.fullmatch(name):
        rule = "letters, digits, '.', '_' and '-', beginning with a letter or digit, 128 at most, and not an id"
        raise UsageError(f"{name!r} cannot name a snapshot: use {rule}")
    return name


def open_store(root: Path) -> Store:
    """The store at ``root``.

    Raises:
        UsageError: there is none.
        CorruptError: there is something else, a part of one, or a store of another format.
    """
    if not os.path.lexists(root / "config.json"):
        if held := _held(root):
            raise CorruptError(f"{root / 'config.json'} is missing and {held} is there: was the copy finished?")
        raise UsageError(
            f"{root} is not a cache store: check the path, or make one with: "
            f"dflash cache snapshot --store {root} --name NAME"
        )
    if (config := read_plain(root / "config.json", limit=_MAX_CONFIG_BYTES)) != CONFIG:
        raise _of_another_format(root, config)
    missing = [name for name in ("blobs", "snapshots", "refs") if not (root / name).is_dir()]
    if missing:
        raise CorruptError(f"{root} is incomplete: {', '.join(missing)} missing; was the copy finished?")
    for path in (root / name for name in ("leases", "pins", "stamps")):
        if os.path.lexists(path) and not path.is_dir():
            raise CorruptError(f"{path} is not a directory: remove it")
    return Store(root=root)


def _of_another_format(root: Path, config: bytes) -> CorruptError:
    other = _FORMAT.fullmatch(config)
    if not other or int(other[1]) == FORMAT:
        return CorruptError(f"{root / 'config.json'} is damaged, it must be {CONFIG.decode()}: copy the store again")
    import shlex

    place = os.path.abspath(root)
    move = shlex.join(["mv", "--", place, f"{place}.old"])
    return CorruptError(
        f"{root / 'config.json'} tells of format {other[1].decode()}, this version reads and writes {FORMAT}: copy the "
        f"store again if it should be of {FORMAT}; else move it away "
        f"({move}) and snapshots are made anew, name another one (--store, compile.store of a run, "
        f"or {STORE_VARIABLE}), or use the version that made it"
    )


def _held(root: Path) -> str | None:
    """The folder of contents or manifests that holds some, in a place without a configuration."""
    for name in ("blobs", "snapshots"):
        if (root / name).is_dir() and any((root / name).iterdir()):
            return f"{name}/"
    return None


def create_store(root: Path) -> Store:
    """The store at ``root``, made if there is nothing; readable for this user alone, since entries embed environments.

    Raises:
        UsageError: ``root`` exists and holds something else.
        CorruptError: as ``open_store``.
    """
    if os.path.lexists(root / "config.json") or _held(root):
        return open_store(root)
    if root.exists() and (not root.is_dir() or any(not _SKELETON.fullmatch(item.name) for item in root.iterdir())):
        raise UsageError(f"{root} exists and is not a cache store: give an empty or a new directory")
    fsops.make_dirs(root, mode=0o700)
    for name in ("blobs", "snapshots", "refs"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    # Last: its presence means complete.
    atomic.write_bytes(root / "config.json", CONFIG, mode=file_mode(root / "blobs"))
    return Store(root=root)


_SKELETON = re.compile(r"blobs|snapshots|refs|leases|\.tmp-.*")
"""What a store that was being made may hold already."""
