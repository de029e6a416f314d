"""Keys and detached signatures: who vouches for a snapshot.

In: a manifest's canonical bytes and a private key, or a signature file and a public key. Out: the bytes of the
signature file, or whether it fits. The signature covers every file of the snapshot, since the manifest holds their
digests. Every part has one written form and a checksum: a flipped bit is damage, not an unknown signer. It decides
nothing about whom to trust (trust.py), and imports ``cryptography`` only to make or check a signature.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from cache_tools.errors import CorruptError
from cache_tools.manifest import ID
from envguard.atomic import sha256_bytes
from envguard.errors import UsageError
from envguard.frozen import Frozen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
DOMAIN = b"dflash-toolkit: signature of a compile cache snapshot, version 1\n"
"""Signed in front of the manifest, so that a signature made for anything else never fits a snapshot."""
MAX_FILE_BYTES = 1024
_PUBLIC = re.compile(rf"{ALGORITHM}:[0-9a-f]{{64}}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_KEYS = {"algorithm", "checksum", "key", "signature", "snapshot"}


class Signature(Frozen):
    """What a signature file says; true only once ``fits`` has said so."""

    snapshot: str
    """Id of the snapshot."""
    key: str
    """Public key of the signer: ``ed25519:`` and 64 hex digits."""
    signature: str
    """128 hex digits (RFC 8032)."""


class SigningKey(Frozen):
    """A private key; never printed, since its repr leaves the secret out."""

    public: str
    _private: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"

    def sign(self, manifest: bytes) -> Signature:
        """The signature of the snapshot whose manifest has these bytes."""
        signed = self._private.sign(DOMAIN + manifest)
        return Signature(snapshot=sha256_bytes(manifest), key=self.public, signature=signed.hex())


def fits(signature: Signature, manifest: bytes) -> bool:
    """Whether ``signature`` was made, by the key that it names, for exactly these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if signature.snapshot != sha256_bytes(manifest):
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key.removeprefix(f"{ALGORITHM}:")))
        public.verify(bytes.fromhex(signature.signature), DOMAIN + manifest)
    except (InvalidSignature, ValueError):  # ValueError: no point of the curve
        return False
    return True


def to_bytes(signature: Signature) -> bytes:
    """The signature file: canonical JSON with a checksum over the rest."""
    return _canonical({**_fields(signature), "checksum": _checksum(signature)})


def from_bytes(data: bytes, *, origin: str) -> Signature:
    """Read a signature file; ``origin`` is the file named in the error.

    Raises:
        CorruptError: anything but the exact bytes of ``to_bytes``; another algorithm is one of the anythings.
    """
    try:
        document = json.loads(data) if len(data) <= MAX_FILE_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.keys() != _KEYS:
        raise CorruptError(f"{origin} is not a signature that this version can read: delete it and sign again")
    if document["algorithm"] != ALGORITHM:
        raise CorruptError(f"{origin} is made with {document['algorithm']!a:.40}, and only {ALGORITHM} is accepted")
    if not (_is(ID, document["snapshot"]) and _is(_PUBLIC, document["key"]) and _is(_SIGNATURE, document["signature"])):
        raise CorruptError(f"{origin} is damaged: delete it and sign again")
    signature = Signature(snapshot=document["snapshot"], key=document["key"], signature=document["signature"])
    if to_bytes(signature) != data:
        raise CorruptError(f"{origin} is damaged: it does not match its own checksum; delete it and sign again")
    return signature


def parse_public_key(text: str, *, origin: str) -> str:
    """``text`` (white space around it allowed) if it is a public key; ``origin`` is where it came from.

    Raises:
        UsageError: it is not.
    """
    key = text.strip()
    if not _PUBLIC.fullmatch(key):
        raise UsageError(f"{origin} is not a public key: it looks like {ALGORITHM}: and 64 hex digits")
    return key


def generate() -> tuple[bytes, str]:
    """A new private key as PEM (PKCS 8, not encrypted) and its public key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), _public(private)


def load_private_key(path: Path) -> SigningKey:
    """The private key in ``path``.

    Raises:
        UsageError: there is none, others can read it, or it is of another kind.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with path.open("rb") as handle:
            mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
            data = handle.read(MAX_FILE_BYTES)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(f"{path} is not a signing key: make one with: dflash cache keygen") from error
    if mode & 0o077:
        raise UsageError(f"{path} can be read by others (mode {mode:o}), so it proves nothing: chmod 600 {path}")
    try:
        private = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not a private key that dflash cache keygen wrote") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a key of another kind: only {ALGORITHM} keys sign snapshots")
    return SigningKey(public=_public(private), _private=private)


def _public(private: Ed25519PrivateKey) -> str:
    return f"{ALGORITHM}:{private.public_key().public_bytes_raw().hex()}"


def _fields(signature: Signature) -> dict[str, str]:
    return {
        "algorithm": ALGORITHM,
        "key": signature.key,
        "signature": signature.signature,
        "snapshot": signature.snapshot,
    }


def _checksum(signature: Signature) -> str:
    return sha256_bytes(_canonical(_fields(signature)))


def _canonical(fields: dict[str, str]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))
