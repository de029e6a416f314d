"""The trust directory: whom this user trusts, what this user made, and the key that this user signs with.

    signing.key       private key (mode 0600), only if the user made one
    trusted/<name>    a public key and a newline
    own/<id>          empty: this user's own tool made that snapshot

In: a directory, by default ``$DFLASH_CACHE_TRUST``, else ``dflash/cache-trust`` in the platform's configuration
directory. Out: its contents, believed only if this user alone can write them. It looks at no store. Whoever copies the
directory to another machine takes the user's word along, as with ``~/.ssh``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from cache_tools.errors import StorageError, UntrustedError
from cache_tools.paths import TRUST_VARIABLE, default_trust_dir
from cache_tools.signing import SigningKey, generate, load_private_key, parse_public_key
from cache_tools.store import NAME
from envguard import atomic
from envguard.errors import UsageError
from envguard.frozen import Frozen

SELF = "self"
"""The name under which keygen trusts the user's own key."""
_MAX_KEY_BYTES = 256


class Keyring(Frozen):
    """The trust directory at ``root``, which need not exist; see ``open_keyring``."""

    root: Path

    @property
    def signing_key(self) -> Path:
        """Where the user's private key is, or would be."""
        return self.root / "signing.key"

    def trusted(self) -> Mapping[str, str]:
        """Name → public key of everybody who is trusted, sorted by name.

        Raises:
            UntrustedError: somebody else could have written the list.
            UsageError: a file in it is not a public key.
        """
        return {name: self._key(name) for name in self._names()}

    def add(self, name: str, key: str) -> None:
        """Trust ``key`` under ``name``.

        Raises:
            UsageError: a bad name, or one that stands for another key.
            StorageError: the directory cannot be written.
        """
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a key: use letters, digits, '.', '_' and '-'")
        known = self.trusted()
        if known.get(name, key) != key:
            raise UsageError(f"{name} stands for another key: dflash cache trust remove {name}, or give another name")
        self._write("trusted", name, f"{key}\n".encode())

    def remove(self, name_or_key: str) -> tuple[str, ...]:
        """Trust no longer: the names that were removed.

        Raises:
            UsageError: nothing is trusted under that name or with that key.
            StorageError: the directory cannot be written.
        """
        names = self._names()
        # By its name also one whose file holds no key any more: that is how it is got rid of.
        if name_or_key in names:
            gone = [name_or_key]
        else:
            gone = [name for name, key in self.trusted().items() if key == name_or_key]
        if not gone:
            known = ", ".join(names) or "none"
            raise UsageError(f"no trusted key {name_or_key!r:.100}; names: {known}")
        try:
            for name in gone:
                (self.root / "trusted" / name).unlink()
            atomic.fsync_dir(self.root / "trusted")
        except OSError as error:
            raise self._unwritable(error) from error
        return tuple(gone)

    def is_own(self, id_: str) -> bool:
        """Whether this user's tool recorded that it made snapshot ``id_``.

        Raises:
            UntrustedError: somebody else could have written the record.
        """
        folder = self._folder("own")
        return folder is not None and (folder / id_).exists()

    def record_own(self, id_: str) -> None:
        """Remember that this user made snapshot ``id_``.

        Raises:
            StorageError: the directory cannot be written.
            UntrustedError: somebody else can write it.
        """
        if not self.is_own(id_):
            self._write("own", id_, b"")

    def prepare(self) -> None:
        """Make the directories, so that what cannot be recorded is known before hours of work.

        Raises:
            StorageError: they cannot be made or written.
            UntrustedError: somebody else can write them.
        """
        for name in ("own", "trusted"):
            self._make(name)
            if not os.access(self.root / name, os.W_OK):
                raise self._unwritable(PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.root / name))

    def new_signing_key(self) -> str:
        """Make this user's key and trust it as ``self``; the public key.

        Raises:
            UsageError: there is a key already, or ``self`` stands for another.
            StorageError: the directory cannot be written.
        """
        if self.signing_key.exists():
            raise UsageError(
                f"{self.signing_key} exists and is never overwritten: dflash cache trust list shows its public key as "
                f"{SELF}; for another key give --out FILE"
            )
        if SELF in self.trusted():
            raise UsageError(f"a key named {SELF} is trusted already: dflash cache trust remove {SELF}, then repeat")
        self.prepare()
        public = write_new_key(self.signing_key)
        self.add(SELF, public)
        return public

    def load_signing_key(self, path: Path | None) -> SigningKey:
        """The key in ``path``, by default this user's own.

        Raises:
            UsageError: there is none, or it cannot be used.
        """
        return load_private_key(path or self.signing_key)

    def _folder(self, name: str) -> Path | None:
        """The folder if it is there and only this user can write it."""
        folder = self.root / name
        for path in (self.root, folder):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise UntrustedError(f"{path} cannot be read ({error.strerror}): set {TRUST_VARIABLE}") from error
            if not stat.S_ISDIR(status.st_mode):
                raise UntrustedError(
                    f"{path} is not a directory, so it cannot say whom you trust: "
                    f"remove it, or set {TRUST_VARIABLE} to a directory of your own"
                )
            if status.st_uid != os.geteuid():
                raise UntrustedError(
                    f"{path} belongs to user {status.st_uid}, so it cannot say whom you trust: "
                    f"set {TRUST_VARIABLE} to a directory of your own"
                )
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UntrustedError(f"{path} can be written by others, so it cannot be believed: chmod go-w {path}")
        return folder

    def _names(self) -> list[str]:
        folder = self._folder("trusted")
        return sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name)) if folder else []

    def _key(self, name: str) -> str:
        path = self.root / "trusted" / name
        try:
            with path.open("rb") as handle:
                data = handle.read(_MAX_KEY_BYTES)
            return parse_public_key(data.decode("ascii", "replace"), origin=str(path))
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}); dflash cache trust remove {name}") from error
        except UsageError as error:
            raise UsageError(f"{error}; dflash cache trust remove {name}") from error

    def _make(self, name: str) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._folder(name)

    def _write(self, folder: str, name: str, data: bytes) -> None:
        self._make(folder)
        try:
            atomic.write_bytes(self.root / folder / name, data, mode=0o600)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.root}, which records the snapshots that you make, cannot be written ({error.strerror}): "
            f"set {TRUST_VARIABLE} to a directory of your own"
        )


def open_keyring(root: Path | None = None) -> Keyring:
    """The keyring at ``root``, by default this user's; nothing is created."""
    return Keyring(root=root or default_trust_dir())


def write_new_key(path: Path) -> str:
    """Write a new private key to ``path``, mode 0600; its public key.

    Raises:
        UsageError: something is there: a key that is overwritten cannot be had back.
        StorageError: it cannot be written.
    """
    private, public = generate()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(private)
            out.flush()
            os.fsync(fd)
    except FileExistsError as error:
        raise UsageError(f"{path} exists and is never overwritten: move it away, or give another file") from error
    except OSError as error:
        raise StorageError(f"writing {path} failed: {error.strerror}") from error
    return public
