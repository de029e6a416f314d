"""Signature files have one form, and fit one manifest and one key."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cache_tools import signing
from cache_tools.errors import CorruptError
from cache_tools.keyring import write_new_key
from cache_tools.signing import SigningKey, load_private_key
from envguard.atomic import sha256_bytes
from envguard.errors import UsageError

MANIFEST = b'{"a manifest":1}'


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    path = tmp_path_factory.mktemp("key") / "signing.key"
    write_new_key(path)
    return load_private_key(path)


def rewritten(data: bytes, **changes: object) -> bytes:
    """The signature file with other fields and a checksum that is right again."""
    fields = {name: value for name, value in json.loads(data).items() if name != "checksum"} | changes
    body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**fields, "checksum": sha256_bytes(body)}, sort_keys=True, separators=(",", ":")).encode()


def test_round_trip(key: SigningKey) -> None:
    signature = key.sign(MANIFEST)
    data = signing.to_bytes(signature)
    assert signing.from_bytes(data, origin="s") == signature
    assert signature.snapshot == sha256_bytes(MANIFEST)
    assert signing.fits(signature, MANIFEST)
    assert not signing.fits(signature, MANIFEST + b" ")
    assert rewritten(data) == data


def test_every_flipped_bit_and_every_cut_is_damage(key: SigningKey) -> None:
    data = signing.to_bytes(key.sign(MANIFEST))
    damaged = [bytes(data[:at]) for at in range(len(data))] + [data + b"\n", b" " + data]
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for one in damaged:
        with pytest.raises(CorruptError, match=r"^x/y\.sig "):
            signing.from_bytes(one, origin="x/y.sig")


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "none"},
        {"algorithm": "ED25519"},
        {"algorithm": "rsa1024"},
        {"algorithm": ["ed25519"]},
        {"key": "ed25519:" + "AB" * 32},
        {"key": "rsa:" + "ab" * 32},
        {"signature": ""},
        {"signature": "ab" * 63},
        {"signature": 7},
        {"snapshot": "../x"},
        {"snapshot": None},
        {"extra": 1},
    ],
    ids=str,
)
def test_another_algorithm_or_form_is_refused_whatever_its_checksum(
    key: SigningKey, changes: dict[str, object]
) -> None:
    data = rewritten(signing.to_bytes(key.sign(MANIFEST)), **changes)
    with pytest.raises(CorruptError, match=r"^s "):
        signing.from_bytes(data, origin="s")


@pytest.mark.parametrize("data", [b"", b"null", b"[" * 1000, b"\xff", b"{}" * 900, b'{"key":' + b"9" * 900 + b"}"])
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^s "):
        signing.from_bytes(data, origin="s")


def test_a_signature_fits_one_key_one_manifest_and_one_purpose(key: SigningKey, tmp_path: Path) -> None:
    write_new_key(tmp_path / "other")
    other = load_private_key(tmp_path / "other")
    good = key.sign(MANIFEST)

    def forged(**changes: str) -> signing.Signature:
        return signing.from_bytes(rewritten(signing.to_bytes(good), **changes), origin="s")

    assert not signing.fits(forged(key=other.public), MANIFEST)
    assert not signing.fits(forged(key="ed25519:" + "ff" * 32), MANIFEST)  # no point of the curve
    assert not signing.fits(forged(signature="00" * 64), MANIFEST)
    assert not signing.fits(forged(snapshot="ab" * 32), MANIFEST)
    assert not signing.fits(forged(snapshot=sha256_bytes(b"more")), b"more")
    bare = key._private.sign(MANIFEST).hex()  # signed without saying what for
    assert not signing.fits(forged(signature=bare), MANIFEST)


def test_the_same_bytes_fit_another_implementation(key: SigningKey, tmp_path: Path) -> None:
    """Anybody can check a signature: openssl, with the key and the domain that the documentation gives."""
    signature = key.sign(MANIFEST)
    (tmp_path / "message").write_bytes(signing.DOMAIN + MANIFEST)
    (tmp_path / "signature").write_bytes(bytes.fromhex(signature.signature))
    prefix = bytes.fromhex("302a300506032b6570032100")  # RFC 8410: an Ed25519 public key in DER
    (tmp_path / "key").write_bytes(prefix + bytes.fromhex(signature.key.removeprefix("ed25519:")))
    command = "openssl pkeyutl -verify -pubin -inkey key -keyform DER -rawin -in message -sigfile signature"
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_private_key_is_private_never_overwritten_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "k"
    old = os.umask(0)
    try:
        public = write_new_key(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(UsageError, match="never overwritten"):
        write_new_key(path)
    assert path.read_bytes() == before
    loaded = load_private_key(path)
    assert loaded.public == public
    assert repr(loaded) == f"SigningKey(public={public!r})"
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        load_private_key(path)


def test_other_private_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    with pytest.raises(UsageError, match="keygen"):
        load_private_key(path)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed448", "-out", path], check=True, timeout=60)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="another kind"):
        load_private_key(path)
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nrubbish\n-----END PRIVATE KEY-----\n")
    with pytest.raises(UsageError, match="not a private key"):
        load_private_key(path)


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:" + "AB" * 32, "ed25519:" + "ab" * 33, "ab" * 32])
def test_public_keys_have_one_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"^there is not a public key"):
        signing.parse_public_key(text, origin="there")


def test_nothing_about_signatures_is_loaded_until_one_is_met() -> None:
    code = (
        "import sys, cache_tools.snapshot, cache_tools.restore, cache_tools.verify, cache_tools.trust; "
        "assert not {'cryptography', 're2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
