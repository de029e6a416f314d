"""Which snapshots may be restored: the user's own, and those that somebody trusted has signed.

In: a store, a snapshot and the user's keyring. Out: a ``Verdict``, or ``UntrustedError``. Everything in a cache is
executed, and a digest says only that bytes are what they were, not whose they are. *Own* means that this user's tool
recorded making exactly this snapshot (its id covers every byte), and that the store is one which only this user can
write. What it does not say: a signature is no sandbox, and a name may be turned to an older signed snapshot.
"""

from __future__ import annotations

import enum
import os
import stat
from pathlib import Path

from cache_tools import manifest, signing
from cache_tools.errors import READ_ONLY_STORE, CorruptError, UntrustedError, storage_errors
from cache_tools.keyring import Keyring, open_keyring
from cache_tools.manifest import Manifest
from cache_tools.plainfile import read_plain
from cache_tools.sharing import file_mode
from cache_tools.signing import Signature, SigningKey
from cache_tools.store import Store
from envguard import atomic
from envguard.errors import UsageError
from envguard.frozen import Frozen

_SHORT = 12


class Standing(enum.StrEnum):
    """Why a snapshot may be restored, or that it may not."""

    OWN = "own"
    SIGNED = "signed"
    UNTRUSTED = "untrusted"


class Verdict(Frozen):
    """The standing of one snapshot."""

    standing: Standing
    signer: str | None
    """Of a trusted signature: the name under which its key is trusted. Of another one: its key."""
    reason: str
    """For an untrusted one, why and what to do, in one line; empty otherwise."""

    def __str__(self) -> str:
        return f"signed by {self.signer}" if self.standing is Standing.SIGNED else self.standing.value


def judge(store: Store, id_: str, content: Manifest, keyring: Keyring | None = None) -> Verdict:
    """The standing of snapshot ``id_`` of ``store``, whose manifest is ``content``; about a millisecond.

    Raises:
        CorruptError: its signature is damaged, which may hide that it was revoked or replaced.
        UntrustedError: the keyring itself can be written by somebody else.
    """
    ring = keyring or open_keyring()
    data = manifest.to_bytes(content)
    if manifest.id_of(data) != id_:
        return _untrusted(None, "its manifest is that of another snapshot")
    found = read_signature(store, id_)
    if found is not None:
        if found.snapshot != id_:
            return _untrusted(found.key, f"its signature was made for {found.snapshot[:_SHORT]}: delete the copy")
        if not signing.fits(found, data):
            return _untrusted(found.key, "its signature does not fit: it was not made by the key that it names")
        signer = next((name for name, key in ring.trusted().items() if key == found.key), None)
        if signer is not None:
            return Verdict(standing=Standing.SIGNED, signer=signer, reason="")
    if ring.is_own(id_):
        foreign = _foreign(store, id_)
        if foreign is None:
            return Verdict(standing=Standing.OWN, signer=None, reason="")
        return _untrusted(None, f"you made it, but {foreign}; or sign it: dflash cache sign {id_[:_SHORT]}")
    if found is not None:
        advice = f"if you know whose it is: dflash cache trust add {found.key} --name NAME"
        return _untrusted(found.key, f"its signer {found.key} is not trusted here; {advice}")
    advice = f"let its maker sign it (dflash cache sign), or if you made it: dflash cache trust own {id_[:_SHORT]}"
    return _untrusted(None, f"it has no signature, and nothing here records that you made it; {advice}")


def require(store: Store, id_: str, content: Manifest, *, allow_untrusted: bool = False) -> Verdict:
    """``judge``, refusing what is untrusted unless the user has said otherwise.

    Raises:
        UntrustedError: snapshot ``id_`` may not be restored; the message says why and what to do.
        UsageError: it was pruned since ``content`` was read.
        CorruptError: its signature is damaged.
    """
    verdict = judge(store, id_, content)
    if verdict.standing is Standing.UNTRUSTED and not allow_untrusted:
        if not store.manifest_path(id_).exists():
            raise UsageError(f"snapshot {id_[:12]} was pruned a moment ago: choose another, see dflash cache list")
        raise UntrustedError(refusal(id_, verdict))
    return verdict


def refusal(id_: str, verdict: Verdict) -> str:
    """Why snapshot ``id_`` may not be restored, in one line."""
    return f"snapshot {id_[:_SHORT]} is not trusted: {verdict.reason}"


def record_own(id_: str) -> None:
    """Remember that this user made snapshot ``id_``, before a name makes it visible.

    Raises:
        StorageError: the record cannot be written.
        UntrustedError: somebody else can write the record.
    """
    open_keyring().record_own(id_)


def sign(store: Store, id_: str, key: SigningKey, *, replace: bool = False) -> Signature:
    """Sign snapshot ``id_`` with ``key``.

    Raises:
        UsageError: somebody else has signed it, and ``replace`` is not given.
        CorruptError: the snapshot or its old signature is damaged.
        StorageError: the store cannot be written.
    """
    content = store.read_manifest(id_)
    before = None if replace else read_signature(store, id_)
    if before is not None and before.key != key.public:
        raise UsageError(
            f"snapshot {id_[:_SHORT]} is signed by {before.key}; dflash cache sign --replace signs it instead"
        )
    signature = key.sign(manifest.to_bytes(content))
    with storage_errors(f"signing {id_[:_SHORT]}", read_only=READ_ONLY_STORE):
        path = store.signature_path(id_)
        atomic.write_bytes(path, signing.to_bytes(signature), mode=file_mode(path.parent))
    return signature


def read_signature(store: Store, id_: str) -> Signature | None:
    """The signature beside snapshot ``id_``, whoever made it; None if there is none.

    Raises:
        CorruptError: the file is damaged.
    """
    path = store.signature_path(id_)
    try:
        data = read_plain(path, limit=signing.MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    return signing.from_bytes(data, origin=str(path))


def signature_problem(store: Store, id_: str) -> str | None:
    """What is wrong with the file beside snapshot ``id_``, whoever signed; None without one."""
    try:
        found = read_signature(store, id_)
        if found is None:
            return None
        if found.snapshot != id_:
            return f"was made for snapshot {found.snapshot[:_SHORT]}: delete it"
        content = store.read_manifest(id_) if store.manifest_path(id_).exists() else None
    except CorruptError as error:
        return str(error)
    if content is not None and not signing.fits(found, manifest.to_bytes(content)):
        return "does not fit the manifest: delete it and sign again"
    return None


def _untrusted(signer: str | None, reason: str) -> Verdict:
    return Verdict(standing=Standing.UNTRUSTED, signer=signer, reason=reason)


def _foreign(store: Store, id_: str) -> str | None:
    """Why somebody else may have had a hand in this store; None if only this user can write it."""
    places = (store.root, store.root / "snapshots", store.root / "refs", store.root / "blobs", store.manifest_path(id_))
    return next((reason for path in places if (reason := _not_mine(path))), None)


def _not_mine(path: Path) -> str | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return f"{path} is gone"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others: chmod go-w {path}"
    return None
