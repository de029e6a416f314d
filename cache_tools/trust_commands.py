"""What the commands about trust do (cli_trust.py), and the parts that ``snapshot`` shares with them.

In: parsed arguments. Out: data on stdout, talk on stderr. It is imported when one of them runs, so that the other
commands do not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cache_tools import paths, render, trust
from cache_tools.keyring import open_keyring, write_new_key
from cache_tools.secrets import Policy, Scanner, lines
from cache_tools.signing import SigningKey, load_private_key, parse_public_key
from cache_tools.store import open_store
from envguard import atomic, cliutil
from envguard.errors import UsageError


def keygen(out: Path | None, *, json: bool) -> None:
    """A new key: in ``out`` and ``out.pub``, or in the trust directory, where it is trusted at once."""
    ring = open_keyring()
    if out is None:
        path, public = ring.signing_key, ring.new_signing_key()
    else:
        if out.with_name(f"{out.name}.pub").exists():
            raise UsageError(f"{out}.pub exists and is never overwritten: move it away, or give another file")
        path, public = out, write_new_key(out)
        atomic.write_text(out.with_name(f"{out.name}.pub"), f"{public}\n")
    if json:
        render.emit_json({"private_key": str(path), "public_key": public})
        return
    render.out(public)
    cliutil.say(f"private key: {path} (whoever has it can sign as you)")
    cliutil.say(f"others trust it with: dflash cache trust add {public} --name YOU")


def sign(store: Path | None, name: str, key: Path | None, secrets: str | None, *, replace: bool, json: bool) -> None:
    """Look for secrets, then sign."""
    signer = open_keyring().load_signing_key(key)
    vault = open_store(store or paths.default_store_dir())
    id_ = vault.resolve(name)
    looking = scanner(secrets, shared=True)
    entries = vault.read_manifest(id_).entries
    looking.look_at_rest(vault, entries)
    looking.conclude(vault, entries)
    trust.sign(vault, id_, signer, replace=replace)
    tell(looking, shared=True)
    if json:
        render.emit_json({"id": id_, "signed_by": signer.public, **findings_document(looking)})
        return
    render.out(f"{id_[: render.SHORT]} signed by {signer.public}")


def add(key: str, name: str | None, *, json: bool) -> None:
    """Trust a key."""
    if Path(key).is_file():
        public = parse_public_key(Path(key).read_bytes()[:256].decode("ascii", "replace"), origin=key)
        name = name or Path(key).name.removesuffix(".pub")
    else:
        public = parse_public_key(key, origin=f"{key!r:.100} is no file and")
        if name is None:
            raise UsageError("a key needs a name: add --name NAME")
    open_keyring().add(name, public)
    if json:
        render.emit_json({"name": name, "key": public})
        return
    render.out(f"{name}  {public}")


def show(*, json: bool) -> None:
    """List the trusted keys."""
    ring = open_keyring()
    keys = ring.trusted()
    if json:
        render.emit_json({"directory": str(ring.root), "keys": [{"name": n, "key": k} for n, k in keys.items()]})
    elif keys:
        render.out(render.table(("NAME", "KEY"), list(keys.items())))
    else:
        cliutil.say("no keys are trusted: only your own snapshots are restored; dflash cache trust add KEY --name NAME")


def remove(name_or_key: str, *, json: bool) -> None:
    """Trust a key no longer."""
    gone = open_keyring().remove(name_or_key)
    if json:
        render.emit_json({"removed": list(gone)})
        return
    render.out(f"removed: {', '.join(gone)}")
    cliutil.say("what was restored from it before has run, and stays: remove the cache directory if you doubt it")


def own(store: Path | None, names: Sequence[str], *, json: bool) -> None:
    """Record snapshots as the user's own, after reading their manifests."""
    vault = open_store(store or paths.default_store_dir())
    ids = [vault.resolve(name) for name in names]
    for id_ in ids:
        vault.read_manifest(id_)
    for id_ in ids:
        trust.record_own(id_)
    if json:
        render.emit_json({"own": ids})
        return
    for name, id_ in zip(names, ids, strict=True):
        render.out(f"{name}  {id_[: render.SHORT]}  own")


def signing_key(path: Path | None, *, wanted: bool) -> SigningKey | None:
    """The key to sign with, loaded before any work is done; None where nothing is to be signed."""
    if not wanted:
        if path:
            raise UsageError("--key has no effect without --sign: add it")
        return None
    return load_private_key(path) if path else open_keyring().load_signing_key(None)


def scanner(secrets: str | None, *, shared: bool) -> Scanner:
    """The scanner for ``--secrets``: by default what is to be shared must be clean, and the rest is only told."""
    return Scanner(Policy(secrets) if secrets else Policy.FAIL if shared else Policy.WARN)


def tell(scanner: Scanner, *, shared: bool) -> None:
    """Findings on stderr."""
    for line in lines(scanner.findings):
        cliutil.say(f"warning: {line}")
    if scanner.findings and not shared:
        cliutil.say("the snapshot is kept: do not share it; unset the variables and compile again for one to share")
    if shared and scanner.home_paths:
        cliutil.say(f"{scanner.home_paths} files name paths under your home directory: no secret, but they tell names")


def findings_document(scanner: Scanner) -> dict[str, object]:
    """Findings for programs."""
    found = [{"path": one.path, "kind": one.kind, "variable": one.variable} for one in scanner.findings]
    return {"secrets": found, "home_paths": scanner.home_paths}
