"""The manifest of a snapshot: its canonical bytes, and a reader that believes none of them.

In: a ``Manifest``, or bytes from a store. Out: canonical JSON (sorted keys, no white space, ASCII) whose sha256 is the
snapshot's id, or a ``Manifest`` that may be acted upon: every path is relative, plain and unique, every size bounded.
It does no I/O and says nothing about authenticity: whoever can write a store can write a valid manifest.
"""

from __future__ import annotations

import datetime
import json
import re
from json.encoder import encode_basestring_ascii as _quoted
from typing import NamedTuple

from cache_tools.errors import CorruptError
from cache_tools.fingerprint import INPUTS, KEY_VERSION, MAX_VALUE, Fingerprint
from cache_tools.kinds import GPU_KINDS, NOT_KEPT, Kind, kind_of
from cache_tools.scan import SAFE_PATH
from envguard.atomic import sha256_bytes
from envguard.frozen import Frozen

FORMAT = 1
MAX_ENTRY_BYTES = 1 << 30
"""The largest file that a snapshot holds; inductor's largest are a few MB."""
MAX_ENTRIES = 1_000_000
MAX_TOTAL_BYTES = 64 << 30
"""All files of a snapshot together: many small blobs that claim to be large are a bomb too."""
MAX_KERNELS = 1_000_000
MAX_FIELDS = 256
MAX_PATH_PARTS = 16
MAX_BUILD_MS = 7 * 24 * 3600 * 1000

ID = re.compile(r"[0-9a-f]{64}")
_FIELD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
TEXT = re.compile(r"[\x20-\x7e]{1,256}")
_KINDS = {kind.value: kind for kind in Kind if kind not in NOT_KEPT}
_KEYS = {"build_ms", "compile_id", "created", "entries", "fingerprint", "format", "parent", "tool"}
_OPTIONAL = {"kernels"}
"""Absent where it would be 0."""


class ManifestEntry(NamedTuple):
    """One file of a snapshot."""

    path: str
    kind: Kind
    size: int
    """Bytes of the uncompressed content."""
    sha256: str
    """Of the uncompressed content: the name of its blob."""
    executable: bool


class Manifest(Frozen):
    """A snapshot."""

    fingerprint: Fingerprint
    compile_id: str | None
    """What it is for, in its maker's words (config shapes and model code); None for a whole directory."""
    created: str
    """UTC, ``2026-11-29T16:20:00.000000Z``; sorts as text."""
    tool: str
    """Name and version of the writer."""
    parent: str | None
    """Id of the snapshot that this one grew from."""
    kernels: int = 0
    """Triton kernels that its graph entries hold (bundled.py), whether or not their own files are entries."""
    build_ms: int | None = None
    """Milliseconds that compiling these entries took where they were made: what a restore saves; None if unknown."""
    entries: tuple[ManifestEntry, ...]
    """Sorted by path."""

    @property
    def gpu_kernels(self) -> bool:
        """Whether something in it was compiled for a GPU."""
        return self.kernels > 0 or any(entry.kind in GPU_KINDS for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.entries)


_latest: list[tuple[Manifest, bytes]] = []
"""The manifest that ``to_bytes`` was last asked for: a restore asks three times for the same one."""


def to_bytes(manifest: Manifest) -> bytes:
    """The canonical bytes: equal manifests give equal bytes, and only these bytes are read back."""
    for known, data in _latest:
        if known is manifest:
            return data
    data = _encode(manifest)
    _latest[:] = [(manifest, data)]
    return data


def _encode(manifest: Manifest) -> bytes:
    fingerprint = manifest.fingerprint
    document = {
        "format": FORMAT,
        "fingerprint": {"key_version": fingerprint.key_version, "values": dict(fingerprint.values)},
        "compile_id": manifest.compile_id,
        "created": manifest.created,
        "tool": manifest.tool,
        "parent": manifest.parent,
        "build_ms": manifest.build_ms,
        "entries": [],
    }
    if manifest.kernels:
        document["kernels"] = manifest.kernels
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    before, empty, after = text.partition('"entries":[]')  # no string can hold this: its quotes would be escaped
    return "".join((before, empty[:-1], ",".join(map(_entry_text, manifest.entries)), "]", after)).encode()


def _entry_text(entry: ManifestEntry) -> str:
    """``_entry_document`` as canonical JSON, in a third of the time of ``json.dumps``, and without its memory."""
    path, kind, size, sha256, executable = entry
    return (
        f'{{"exec":{"true" if executable else "false"},"kind":{_quoted(kind)},"path":{_quoted(path)},'
        f'"sha256":{_quoted(sha256)},"size":{size}}}'
    )


def _entry_document(entry: ManifestEntry) -> dict[str, object]:
    return {
        "path": entry.path,
        "kind": str.__str__(entry.kind),
        "size": entry.size,
        "sha256": entry.sha256,
        "exec": entry.executable,
    }


def differs_only_in_origin(data: bytes, manifest: Manifest, *, origin: str) -> bool:
    """Whether the manifest with the bytes ``data``, read from where it was kept, says the same as ``manifest`` but for
    when, by what, from what and how fast it was made. (Ten times as fast as reading it.)

    Raises:
        CorruptError: it is no manifest; ``origin`` is the file named in the error.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.keys() - _OPTIONAL != _KEYS:
        document = json.loads(to_bytes(from_bytes(data, origin=origin)))
    fingerprint = {"key_version": manifest.fingerprint.key_version, "values": dict(manifest.fingerprint.values)}
    return bool(
        document["fingerprint"] == fingerprint
        and document["compile_id"] == manifest.compile_id
        and document.get("kernels", 0) == manifest.kernels
        and document["entries"] == [_entry_document(entry) for entry in manifest.entries]
    )


def id_of(data: bytes) -> str:
    """The id of the snapshot whose manifest has these bytes."""
    return sha256_bytes(data)


def from_bytes(data: bytes, *, origin: str) -> Manifest:
    """Read a manifest; ``origin`` is the file named in the error.

    Raises:
        CorruptError: anything but the canonical bytes of a manifest of this format that is safe to act upon.
    """
    if data.count(b",") * 20 > len(data) + 100_000:  # ours have a comma each 27 bytes; a list of lists fills the memory
        raise CorruptError(f"{origin} is not a manifest: delete it or take the snapshot again")
    try:
        document = json.loads(data)
        manifest = _manifest(document)
        canonical = to_bytes(manifest)
    except _Refused as error:
        raise CorruptError(f"{origin}: {error}: delete it or take the snapshot again") from error
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{origin} is not a manifest ({error}): delete it or take the snapshot again") from error
    if canonical != data:
        raise CorruptError(f"{origin} is not in canonical form: it was changed after it was written; delete it")
    return manifest


def check_new(manifest: Manifest) -> None:
    """What ``from_bytes`` would refuse of a manifest that was made from a scan, in a fraction of its time.

    Raises:
        CorruptError: two paths differ only in case, are too deep, or are too many; the files are too large; or what
            was observed of this machine cannot be written.
    """
    try:
        if len(manifest.entries) > MAX_ENTRIES:
            raise _Refused(f"entries must be a list of at most {MAX_ENTRIES}: remove some from the cache")
        paths = [entry.path for entry in manifest.entries]
        if deep := [path for path in paths if path.count("/") >= MAX_PATH_PARTS]:
            raise _Refused(f"path {deep[0]!r:.80} is not a plain relative path: remove it from the cache")
        try:
            _check_paths(paths)
        except _Refused as error:
            raise _Refused(f"{error}: remove one of them from the cache") from error
        if large := [entry.path for entry in manifest.entries if not 0 < entry.size <= MAX_ENTRY_BYTES]:
            raise _Refused(f"{large[0]} has not 1 to {MAX_ENTRY_BYTES} bytes: remove it from the cache")
        if manifest.size > MAX_TOTAL_BYTES:
            raise _Refused(f"its files have {manifest.size} bytes in all; allowed: {MAX_TOTAL_BYTES}: remove some")
        if manifest.kernels > MAX_KERNELS:
            raise _Refused(f"{manifest.kernels} kernels in graph entries; allowed: {MAX_KERNELS}: remove some entries")
        _fingerprint({"key_version": manifest.fingerprint.key_version, "values": dict(manifest.fingerprint.values)})
        if manifest.build_ms is not None:
            _milliseconds(manifest.build_ms)
    except _Refused as error:
        raise CorruptError(f"the new manifest: {error}") from error


class _Refused(Exception):
    """What a manifest says cannot be accepted; becomes a ``CorruptError`` with the file's name."""


def _manifest(document: object) -> Manifest:
    fields = _object(document, "the document")
    if fields.get("format") != FORMAT or isinstance(fields["format"], bool):
        raise _Refused(f"format {fields.get('format')!r:.20} is unknown to this version, which reads {FORMAT}")
    _exact_keys(fields, _KEYS | (_OPTIONAL & fields.keys()), "the document")
    entries = fields["entries"]
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise _Refused(f"entries must be a list of at most {MAX_ENTRIES}")
    manifest = Manifest(
        fingerprint=_fingerprint(fields["fingerprint"]),
        compile_id=None if fields["compile_id"] is None else _text(fields["compile_id"], TEXT, "compile_id"),
        created=_moment(fields["created"]),
        tool=_text(fields["tool"], TEXT, "tool"),
        parent=None if fields["parent"] is None else _text(fields["parent"], ID, "parent"),
        build_ms=None if fields["build_ms"] is None else _milliseconds(fields["build_ms"]),
        kernels=_count(fields["kernels"]) if "kernels" in fields else 0,
        entries=tuple(_entry(entry) for entry in entries),
    )
    _check_paths([entry.path for entry in manifest.entries])
    if manifest.size > MAX_TOTAL_BYTES:
        raise _Refused(f"its files have {manifest.size} bytes in all; allowed: {MAX_TOTAL_BYTES}")
    return manifest


def _check_paths(paths: list[str]) -> None:
    """Sorted, unique, distinct where file names ignore case, and no file where another needs a folder."""
    if paths != sorted(paths):
        raise _Refused("entries are not sorted by path")
    seen = dict(zip(map(str.lower, paths), paths, strict=True))
    if len(seen) != len(paths):
        clash = next((path for path in paths if seen[path.lower()] != path), None)
        raise _Refused(f"{clash} and {seen[clash.lower()]} differ only in case" if clash else "a path occurs twice")
    folders: dict[str, str] = {}
    for path in paths:
        folder = path[: max(path.rfind("/"), 0)]
        while folder and folder not in folders:  # what is in it was checked with all above it
            if folder.lower() in seen:
                raise _Refused(f"{folder} is both a file and a folder")
            folders[folder] = folder.lower()
            folder = folder[: max(folder.rfind("/"), 0)]
    spelled: dict[str, str] = {}
    for folder, lowered in folders.items():
        if spelled.setdefault(lowered, folder) != folder:
            raise _Refused(f"folders {folder} and {spelled[lowered]} differ only in case")


def _entry(value: object) -> ManifestEntry:
    fields = _object(value, "an entry")
    _exact_keys(fields, {"path", "kind", "size", "sha256", "exec"}, "an entry")
    path = fields["path"]
    if not isinstance(path, str):
        raise _Refused(f"path {path!r:.80} is not a string")
    if path.count("/") >= MAX_PATH_PARTS or not SAFE_PATH.fullmatch(path):
        raise _Refused(f"path {path!r:.80} is not a plain relative path")
    if not isinstance(fields["kind"], str) or fields["kind"] not in _KINDS:
        raise _Refused(f"{path} has kind {fields['kind']!r:.40}; allowed: {', '.join(_KINDS)}")
    kind, told = _KINDS[fields["kind"]], kind_of(path)
    if told in NOT_KEPT or (kind in GPU_KINDS) != (told in GPU_KINDS):  # a wrong word would hide GPU code from compare
        raise _Refused(f"{path} has kind {kind.value}, and its path says {told.value}")
    size = fields["size"]
    if type(size) is not int or not 0 < size <= MAX_ENTRY_BYTES:
        raise _Refused(f"{path} has size {size!r:.40}; allowed: 1 to {MAX_ENTRY_BYTES}")
    if type(fields["exec"]) is not bool:
        raise _Refused(f"{path} has exec {fields['exec']!r:.40}; allowed: true, false")
    digest = _text(fields["sha256"], ID, f"sha256 of {path}")
    return ManifestEntry(path=path, kind=kind, size=size, sha256=digest, executable=fields["exec"])


def _fingerprint(value: object) -> Fingerprint:
    fields = _object(value, "fingerprint")
    _exact_keys(fields, {"key_version", "values"}, "fingerprint")
    version, values = fields["key_version"], _object(fields["values"], "fingerprint.values")
    if type(version) is not int or version < 1:
        raise _Refused(f"fingerprint.key_version is {version!r:.20}; allowed: 1 and above")
    if version == KEY_VERSION:  # another version has other fields and is refused by compare, not as corruption
        _exact_keys(values, {one.name for one in INPUTS}, "fingerprint.values")
    if len(values) > MAX_FIELDS or not all(_FIELD.fullmatch(name) for name in values):
        raise _Refused(f"fingerprint.values must have at most {MAX_FIELDS} plain names")
    checked: dict[str, str | None] = {}
    for name, observed in values.items():
        if observed is not None and not isinstance(observed, str):
            raise _Refused(f"fingerprint.values.{name} must be a string or null")
        if observed is not None and (len(observed) > MAX_VALUE or not observed.isprintable()):  # it will be printed
            raise _Refused(f"fingerprint.values.{name} must be at most {MAX_VALUE} printable characters")
        checked[name] = observed
    return Fingerprint(key_version=version, values=checked)


def _moment(value: object) -> str:
    text = _text(value, _CREATED, "created")
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise _Refused(f"created is {text}, which is no moment") from error
    return text


def _milliseconds(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BUILD_MS:
        raise _Refused(f"build_ms is {value!r:.40}; allowed: 0 to {MAX_BUILD_MS}")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 < value <= MAX_KERNELS:
        raise _Refused(f"kernels is {value!r:.40}; allowed: 1 to {MAX_KERNELS}, or no such key")
    return value


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Refused(f"{where} is not an object")
    return value


def _exact_keys(fields: dict[str, object], expected: set[str], where: str) -> None:
    if fields.keys() != expected:
        odd = sorted(fields.keys() ^ expected)
        raise _Refused(f"{where} has unknown or missing keys: {', '.join(map(ascii, odd))[:200]}")


def _text(value: object, pattern: re.Pattern[str], where: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _Refused(f"{where} is {value!r:.80}, which is not allowed there")
    return value
