"""Is every bit of a store what was written? And what is in it.

In: a store, optionally some snapshots of it. Out: every ``Problem`` found, and one ``Listed`` a snapshot.
It reads everything it judges and holds off pruning; leftovers of killed writers (``.tmp-*``) are not part of a store.
It changes nothing, but after it has found a damaged pack the next snapshot believes no stamp about packs, and replaces
it: a bit that rots leaves a file's times as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from cache_tools import blobs, lease, stamps
from cache_tools.blobs import Place
from cache_tools.errors import CorruptError, storage_errors
from cache_tools.manifest import ID, Manifest
from cache_tools.packs import PackReader
from cache_tools.scan import walk
from cache_tools.store import Store, open_store
from cache_tools.trust import Verdict, judge, signature_problem
from envguard.frozen import Frozen

_ROOT = ("config.json", "leases", "pins", "stamps")


class Problem(Frozen):
    """One thing that is wrong with a store."""

    path: str
    """Relative to the store."""
    reason: str


class Verification(Frozen):
    """What ``verify_store`` looked at and found."""

    snapshots: int
    blobs: int
    bytes: int
    """Of the files read, as they are on disk."""
    problems: tuple[Problem, ...]


class Listed(Frozen):
    """One snapshot of a store, or a name or manifest that cannot be read."""

    name: str | None
    """None for a snapshot that no name stands for (any more)."""
    id: str | None
    manifest: Manifest | None
    trust: Verdict | None
    """None where it cannot be told, since the manifest or the signature is damaged."""
    problem: str | None


def list_snapshots(store: Store) -> tuple[Listed, ...]:
    """Every name, newest snapshot first, then the nameless; what is damaged is listed with its problem."""
    found: list[Listed] = []
    for name in store.names():
        try:
            id_ = store.read_ref(name)
        except (CorruptError, FileNotFoundError) as error:
            if store.ref_path(name).exists():  # else it was pruned a moment ago
                found.append(Listed(name=name, id=None, manifest=None, trust=None, problem=str(error)))
        else:
            found.append(_listed(store, name, id_))
    named = {one.id for one in found}
    nameless = [_listed(store, None, id_) for id_ in store.ids() if id_ not in named]
    nameless = [one for one in nameless if not one.problem or store.manifest_path(str(one.id)).exists()]
    return tuple(sorted(found, key=_created, reverse=True) + sorted(nameless, key=_created, reverse=True))


def _listed(store: Store, name: str | None, id_: str) -> Listed:
    content: Manifest | None = None
    try:
        content = store.read_manifest(id_)
        return Listed(name=name, id=id_, manifest=content, trust=judge(store, id_, content), problem=None)
    except CorruptError as error:
        return Listed(name=name, id=id_, manifest=content, trust=None, problem=str(error))


def _created(one: Listed) -> str:
    return one.manifest.created if one.manifest else ""


def verify_store(
    root: Path, names: Sequence[str] = (), *, on_progress: Callable[[int, int], None] | None = None
) -> Verification:
    """Check the snapshots ``names``, or without any every file of the store at ``root``.

    Raises:
        UsageError: there is no store, or no such snapshot.
        StorageError: a file cannot be read.
    """
    try:
        store = open_store(root)
    except CorruptError as error:  # nothing else can be judged
        named = next((name for name in _ROOT if str(error).startswith(f"{root / name} ")), "config.json")
        problem = Problem(path=named, reason=str(error).removeprefix(f"{root / named} "))
        return Verification(snapshots=0, blobs=0, bytes=0, problems=(problem,))
    with storage_errors(f"verifying {root}"), lease.reading(root):
        check = _Check(store)
        if names:
            check.some(names)
        else:
            check.refs()
            check.everything()
        check.packs()
        check.contents(on_progress, everything=not names)
        if any(path.startswith("blobs/") for path in check.problems):
            stamps.doubt_packs(root)
    return Verification(
        snapshots=check.snapshots, blobs=check.blobs, bytes=check.bytes, problems=tuple(check.problems.values())
    )


class _Check:
    """The running tally of one verification."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.snapshots = self.blobs = self.bytes = 0
        self.problems: dict[str, Problem] = {}
        self.wanted: dict[str, tuple[int, str]] = {}
        """Digest → bytes of its content, and a file that has it, as manifests say."""

    def note(self, path: Path, reason: str) -> None:
        relative = path.relative_to(self.store.root).as_posix()
        self.problems.setdefault(relative, Problem(path=relative, reason=reason.removeprefix(f"{path} ")))

    def some(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                id_ = self.store.resolve(name)
            except CorruptError as error:
                self.note(self.store.ref_path(name), str(error))
            else:
                self.manifest(id_)
                self.signature(id_)

    def refs(self) -> None:
        for name in self.store.names():
            try:
                self.store.read_ref(name)
            except CorruptError as error:
                self.note(self.store.ref_path(name), str(error))

    def everything(self) -> None:
        """Every file, known by where it lies; manifests before blobs, since they tell the sizes."""
        for id_ in self.store.ids():
            self.manifest(id_)
            self.signature(id_)
        for path, status in walk(self.store.root):
            file = self.store.root / path
            if status is None or file.name.startswith(".tmp-"):
                continue
            self.bytes += status.st_size
            if file.parent == self.store.root / "snapshots" and file.suffix == ".sig" and ID.fullmatch(file.stem):
                self.signature(file.stem)  # again, or that of a snapshot which is not there
            elif not self._is_known(file):
                self.note(file, "does not belong into a store: remove it")

    def _is_known(self, file: Path) -> bool:
        root = self.store.root
        folder, stem = file.parent, file.stem
        return (
            file == root / "config.json"
            or (folder == root / "blobs" and file.suffix == blobs.SUFFIX and bool(ID.fullmatch(stem)))
            or (folder == root / "snapshots" and file.suffix == ".json" and bool(ID.fullmatch(stem)))
            or (folder == root / "refs" and file.name in self.store.names())
            or (folder == root / "pins" and bool(ID.fullmatch(file.name)) and file.lstat().st_size == 0)
            or (folder == root / "leases" and file.suffix == ".lock")
            or (folder == root / "stamps" and file.suffix == ".stamp")
        )

    def manifest(self, id_: str) -> None:
        self.snapshots += 1
        path = self.store.manifest_path(id_)
        try:
            content = self.store.read_manifest(id_)
        except CorruptError as error:
            self.note(path, str(error))
            return
        for entry in content.entries:
            if self.wanted.setdefault(entry.sha256, (entry.size, entry.path))[0] != entry.size:
                self.note(path, f"gives blob {entry.sha256[:12]} two sizes: it was not written by this tool; delete it")

    def signature(self, id_: str) -> None:
        if problem := signature_problem(self.store, id_):
            self.note(self.store.signature_path(id_), problem)

    def packs(self) -> None:
        """Every pack, bit by bit; what is in none of them is missing."""
        for name, error in self.store.index.damaged.items():
            self.note(self.store.root / "blobs" / name, str(error))

    def contents(self, on_progress: Callable[[int, int], None] | None, *, everything: bool) -> None:
        """The blobs that manifests name, or all of them; in the order in which they lie on the disk."""
        index = self.store.index
        for missing in self.wanted.keys() - {digest.hex() for digest in index.places}:
            path = self.store.root / "blobs" / missing
            self.note(path, f"{self.wanted[missing][1]} is missing, no pack holds it: was the copy finished?")
        chosen = [
            (name, place.offset, digest, place)
            for name, places in index.packs.items()
            for digest, place in places.items()
            if everything or (digest.hex() in self.wanted and index.places[digest] is place)
        ]
        total = sum(place.length for _, _, _, place in chosen)
        reader = PackReader(index)
        done = 0
        try:
            for name, _, digest, place in sorted(chosen, key=lambda one: one[:2]):
                self._content(reader, name, digest, place)
                self.blobs += 1
                done += place.length
                if on_progress:
                    on_progress(done, total)
        finally:
            reader.close()

    def _content(self, reader: PackReader, name: str, digest: bytes, place: Place) -> None:
        path = self.store.root / "blobs" / name
        size = self.wanted.get(digest.hex(), (place.size, ""))[0]
        if size != place.size:
            self.note(path, f"has {place.size} bytes for blob {digest.hex()[:12]} where a manifest says {size}")
            return
        frame, content, length = hashlib.sha256(), hashlib.sha256(), 0
        try:
            for part in reader.parts(place):
                frame.update(part)
            if frame.digest() != place.frame_sha256:
                raise CorruptError(f"{path} is damaged at blob {digest.hex()[:12]}: it does not match its own checksum")
            for chunk in reader.chunks(place, limit=place.size, origin=path):
                content.update(chunk)
                length += len(chunk)
        except CorruptError as error:
            self.note(path, str(error))
            return
        if content.digest() != digest or length != place.size:
            self.note(path, f"is damaged: the content of blob {digest.hex()[:12]} does not hash to its name")
