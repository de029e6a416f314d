"""Who may be restored: one's own and what is signed by somebody trusted; everything else is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cache_tools import signing, trust
from cache_tools.errors import CorruptError, StorageError, UntrustedError
from cache_tools.keyring import Keyring, open_keyring, write_new_key
from cache_tools.plan import best_match, plan_restore
from cache_tools.restore import execute
from cache_tools.signing import SigningKey, load_private_key
from cache_tools.snapshot import snapshot
from cache_tools.store import Store, open_store
from cache_tools.trust import Standing, judge, sign
from cache_tools.verify import list_snapshots, verify_store
from envguard.errors import ToolError, UsageError
from envguard.frozen import replace

from . import helpers
from .test_cli import Cli

HERE = helpers.fingerprint()


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keyring:
    """The keyring of the user who runs the test."""
    monkeypatch.setenv("DFLASH_CACHE_TRUST", str(tmp_path / "trust" / "mine"))
    return open_keyring()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    helpers.make_cache(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def filled(store: Store, cache: Path) -> Store:
    snapshot(store, cache, name="run", fingerprint=HERE, compile_id="two layers")
    return store


@pytest.fixture
def foreign(filled: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """A store as it comes from another machine: every file of it belongs to this user, and nothing is recorded."""
    copy = tmp_path / "copy"
    shutil.copytree(filled.root, copy)
    monkeypatch.setenv("DFLASH_CACHE_TRUST", str(tmp_path / "trust" / "another-machine"))
    return open_store(copy)


def new_key(tmp_path: Path, name: str = "alice") -> SigningKey:
    path = tmp_path / f"{name}.key"
    if not path.exists():
        write_new_key(path)
    return load_private_key(path)


def given_to(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Let ``path`` look as if user 12345 owned it; only root could really give it away."""
    real = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = real(self, follow_symlinks=follow_symlinks)
        return os.stat_result((*status[:4], 12345, *status[5:10])) if self == path else status

    patch.setattr(Path, "stat", stat)


def standing(store: Store, name: str = "run") -> Standing:
    id_ = store.resolve(name)
    return judge(store, id_, store.read_manifest(id_)).standing


def refused(store: Store, target: Path, match: str, name: str = "run") -> None:
    """Neither planned nor taken by a training run, and nothing is written."""
    with pytest.raises(UntrustedError, match=match):
        plan_restore(store, name, target, here=HERE)
    said: list[str] = []
    assert best_match(store, HERE, "two layers", say=said.append) is None
    assert any(store.resolve(name)[:12] in line for line in said)
    assert not target.exists()


def test_ones_own_needs_no_signature(filled: Store, tmp_path: Path) -> None:
    assert standing(filled) is Standing.OWN
    assert execute(plan_restore(filled, "run", tmp_path / "new", here=HERE)).added == 5
    match = best_match(filled, HERE, "two layers")
    assert match is not None


def test_a_copied_store_is_not_ones_own_although_its_files_are(foreign: Store, tmp_path: Path) -> None:
    status = foreign.manifest_path(foreign.resolve("run")).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o600)
    refused(foreign, tmp_path / "new", "no signature, and nothing here records that you made it")


def test_the_message_is_one_line_and_its_advice_works(foreign: Store, tmp_path: Path) -> None:
    with pytest.raises(UntrustedError) as caught:
        plan_restore(foreign, "run", tmp_path / "new", here=HERE)
    message = str(caught.value)
    assert "\n" not in message
    arguments = message.partition("dflash cache ")[2].rpartition("dflash cache ")[2].split()
    assert arguments[:2] == ["trust", "own"]
    subprocess.run([sys.executable, "-m", "cache_tools", *arguments, "--store", foreign.root], check=True, timeout=60)
    assert standing(foreign) is Standing.OWN


def test_signed_by_somebody_trusted(foreign: Store, tmp_path: Path, mine: Keyring) -> None:
    alice = new_key(tmp_path)
    sign(foreign, foreign.resolve("run"), alice)
    refused(foreign, tmp_path / "new", f"its signer {alice.public} is not trusted here; .* trust add {alice.public}")
    open_keyring().add("alice", alice.public)
    plan = plan_restore(foreign, "run", tmp_path / "new", here=HERE)
    assert (plan.trust.standing, plan.trust.signer) == (Standing.SIGNED, "alice")
    assert execute(plan).added == 5
    assert best_match(foreign, HERE, "two layers") is not None
    assert mine.root != open_keyring().root


def test_a_key_that_is_removed_counts_no_more_even_after_planning(foreign: Store, tmp_path: Path) -> None:
    alice = new_key(tmp_path)
    sign(foreign, foreign.resolve("run"), alice)
    open_keyring().add("alice", alice.public)
    open_keyring().add("also-alice", alice.public)
    plan = plan_restore(foreign, "run", tmp_path / "new", here=HERE)
    assert set(open_keyring().remove(alice.public)) == {"alice", "also-alice"}
    with pytest.raises(UntrustedError, match="not trusted here"):
        execute(plan)
    assert not (tmp_path / "new").exists()
    refused(foreign, tmp_path / "new", "not trusted here")


def test_stripping_the_signature(foreign: Store, tmp_path: Path) -> None:
    id_ = foreign.resolve("run")
    alice = new_key(tmp_path)
    sign(foreign, id_, alice)
    open_keyring().add("alice", alice.public)
    plan = plan_restore(foreign, "run", tmp_path / "new", here=HERE)
    foreign.signature_path(id_).unlink()
    with pytest.raises(UntrustedError, match="no signature"):
        execute(plan)
    refused(foreign, tmp_path / "new", "no signature")


def test_replacing_and_replaying_a_signature(foreign: Store, cache: Path, tmp_path: Path) -> None:
    """A trusted signature of one snapshot beside another: as it is, and with the other's id written into it."""
    alice = new_key(tmp_path)
    open_keyring().add("alice", alice.public)
    good = foreign.resolve("run")
    signature = sign(foreign, good, alice)
    evil = replace(foreign.read_manifest(good), created="2099-01-01T00:00:00.000000Z")
    id_, _ = foreign.add_manifest(evil)
    foreign.set_ref("evil", id_)
    path = foreign.signature_path(id_)
    path.write_bytes(foreign.signature_path(good).read_bytes())
    with pytest.raises(UntrustedError, match=f"its signature was made for {good[:12]}"):
        plan_restore(foreign, "evil", tmp_path / "new", here=HERE)
    path.write_bytes(signing.to_bytes(replace(signature, snapshot=id_)))
    with pytest.raises(UntrustedError, match="its signature does not fit"):
        plan_restore(foreign, "evil", tmp_path / "new", here=HERE)
    bad = [problem.path for problem in verify_store(foreign.root).problems]
    assert bad == [path.relative_to(foreign.root).as_posix()]
    said: list[str] = []
    match = best_match(foreign, HERE, "two layers", say=said.append)
    assert match is not None
    assert match.id == good
    assert len(said) == 1
    assert id_[:12] in said[0]


def test_claiming_a_trusted_key_for_a_signature_of_another(foreign: Store, tmp_path: Path) -> None:
    alice, mallory = new_key(tmp_path), new_key(tmp_path, "mallory")
    open_keyring().add("alice", alice.public)
    id_ = foreign.resolve("run")
    signature = sign(foreign, id_, mallory)
    forged = replace(signature, key=alice.public)
    foreign.signature_path(id_).write_bytes(signing.to_bytes(forged))
    refused(foreign, tmp_path / "new", "does not fit")


def test_a_damaged_signature_is_damage_even_on_ones_own(filled: Store, tmp_path: Path) -> None:
    id_ = filled.resolve("run")
    sign(filled, id_, new_key(tmp_path))
    assert standing(filled) is Standing.OWN  # nobody needs to trust alice
    path = filled.signature_path(id_)
    path.write_bytes(path.read_bytes().replace(b"ed25519", b"ed25518", 1))
    with pytest.raises(CorruptError, match=path.name):
        plan_restore(filled, "run", tmp_path / "new", here=HERE)
    assert best_match(filled, HERE, None) is None
    (listed,) = list_snapshots(filled)
    assert listed.problem is not None
    assert path.name in listed.problem
    assert [problem.path for problem in verify_store(filled.root, ["run"]).problems] == [f"snapshots/{id_}.sig"]


def test_a_manifest_under_the_id_of_another(filled: Store, tmp_path: Path) -> None:
    plan = plan_restore(filled, "run", tmp_path / "new", here=HERE)
    entry = plan.manifest.entries[0]._replace(path="aa/other.py")
    changed = replace(plan, manifest=replace(plan.manifest, entries=(entry,)))
    with pytest.raises(UntrustedError, match="manifest is that of another snapshot"):
        execute(changed)


def test_a_snapshot_that_goes_away_after_planning_is_refused(filled: Store, tmp_path: Path) -> None:
    plan = plan_restore(filled, "run", tmp_path / "new", here=HERE)
    filled.manifest_path(plan.id).unlink()
    with pytest.raises(ToolError, match=plan.id[:12]):
        execute(plan)
    assert not (tmp_path / "new").exists()


def test_a_store_that_somebody_else_can_write_is_not_ones_own(filled: Store, tmp_path: Path) -> None:
    id_ = filled.resolve("run")
    for path in (filled.root, filled.root / "snapshots", filled.root / "refs", filled.manifest_path(id_)):
        mode = path.stat().st_mode
        for extra in (0o020, 0o002):
            path.chmod(mode | extra)
            refused(filled, tmp_path / "new", "you made it, but .* can be written by others")
        path.chmod(mode)
        assert standing(filled) is Standing.OWN
        with pytest.MonkeyPatch.context() as patch:
            given_to(patch, path)
            refused(
                filled, tmp_path / "new", "you made it, but .* belongs to user 12345; or sign it: dflash cache sign"
            )
    alice = new_key(tmp_path)
    filled.root.chmod(0o777)
    sign(filled, id_, alice)
    open_keyring().add("alice", alice.public)
    assert standing(filled) is Standing.SIGNED  # a shared store is what signatures are for


def test_a_trust_directory_of_somebody_else_is_not_believed(filled: Store, tmp_path: Path, mine: Keyring) -> None:
    for path in (mine.root, mine.root / "own"):
        path.chmod(0o777)
        with pytest.raises(UntrustedError, match="can be written by others, so it cannot be believed"):
            plan_restore(filled, "run", tmp_path / "new", here=HERE)
        path.chmod(0o700)
        with pytest.MonkeyPatch.context() as patch:
            given_to(patch, path)
            with pytest.raises(UntrustedError, match="belongs to user 12345"):
                plan_restore(filled, "run", tmp_path / "new", here=HERE)
            with pytest.raises(UntrustedError, match="belongs to user 12345"):
                mine.record_own("ab" * 32)
    assert standing(filled) is Standing.OWN


@pytest.mark.parametrize("place", ["", "trusted", "own"])
def test_a_file_in_place_of_a_trust_directory_is_not_believed(
    filled: Store, tmp_path: Path, mine: Keyring, place: str
) -> None:
    sign(filled, filled.resolve("run"), new_key(tmp_path))
    mine.prepare()
    shutil.rmtree(mine.root / place)
    (mine.root / place).write_bytes(b"")
    with pytest.raises(UntrustedError, match=r"is not a directory.*set DFLASH_CACHE_TRUST"):
        plan_restore(filled, "run", tmp_path / "new", here=HERE)


def test_what_cannot_be_recorded_is_not_named(
    store: Store, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers.write(tmp_path, "file", b"")
    monkeypatch.setenv("DFLASH_CACHE_TRUST", str(tmp_path / "file" / "trust"))
    with pytest.raises(StorageError, match="set DFLASH_CACHE_TRUST"):
        snapshot(store, cache, name="run", fingerprint=HERE)
    assert store.names() == ()
    with pytest.raises(StorageError, match="set DFLASH_CACHE_TRUST"):
        open_keyring().prepare()


def test_an_unchanged_snapshot_of_before_records_becomes_ones_own(foreign: Store, cache: Path) -> None:
    """What was read a moment ago from this user's own cache is this user's, whoever wrote the same before."""
    assert standing(foreign) is Standing.UNTRUSTED
    taken = snapshot(foreign, cache, name="run", fingerprint=HERE, compile_id="two layers")
    assert not taken.new
    assert standing(foreign) is Standing.OWN


def test_the_caller_may_take_anybodys(foreign: Store, tmp_path: Path) -> None:
    plan = plan_restore(foreign, "run", tmp_path / "new", here=HERE, allow_untrusted=True)
    assert plan.trust.standing is Standing.UNTRUSTED
    assert execute(plan).added == 5
    id_ = foreign.resolve("run")
    helpers.write(foreign.root, f"snapshots/{id_}.sig", b"rubbish")
    with pytest.raises(CorruptError):  # untrusted is allowed, damaged is not
        plan_restore(foreign, "run", tmp_path / "new", here=HERE, allow_untrusted=True)


def test_trust_comes_before_the_fingerprint(foreign: Store, tmp_path: Path) -> None:
    other = helpers.fingerprint(cpu_isa="another")
    with pytest.raises(UntrustedError):
        plan_restore(foreign, "run", tmp_path / "new", here=other)
    assert best_match(foreign, other, None, say=pytest.fail) is None  # what does not fit is not worth a word


def test_anothers_signature_is_replaced_only_on_request(filled: Store, tmp_path: Path) -> None:
    id_ = filled.resolve("run")
    alice, bob = new_key(tmp_path), new_key(tmp_path, "bob")
    sign(filled, id_, alice)
    assert sign(filled, id_, alice).key == alice.public
    with pytest.raises(UsageError, match=f"is signed by {alice.public}; dflash cache sign --replace"):
        sign(filled, id_, bob)
    sign(filled, id_, bob, replace=True)
    found = trust.read_signature(filled, id_)
    assert found is not None
    assert found.key == bob.public


def test_an_orphaned_signature_is_no_damage_and_a_foreign_file_is(filled: Store, tmp_path: Path) -> None:
    id_ = filled.resolve("run")
    sign(filled, id_, new_key(tmp_path))
    filled.signature_path(id_).rename(filled.root / "snapshots" / "notes.sig")
    assert [problem.path for problem in verify_store(filled.root).problems] == ["snapshots/notes.sig"]
    (filled.root / "snapshots" / "notes.sig").rename(filled.signature_path("ab" * 32))
    assert "made for" in verify_store(filled.root).problems[0].reason


def test_keys_have_names(tmp_path: Path) -> None:
    ring = open_keyring()
    alice, bob = new_key(tmp_path).public, new_key(tmp_path, "bob").public
    assert ring.trusted() == {}
    ring.add("bob", bob)
    ring.add("alice", alice)
    ring.add("alice", alice)
    assert ring.trusted() == {"alice": alice, "bob": bob}
    with pytest.raises(UsageError, match="alice stands for another key"):
        ring.add("alice", bob)
    for name in ("", "../x", "a b", ".x"):
        with pytest.raises(UsageError, match="cannot name a key"):
            ring.add(name, bob)
    with pytest.raises(UsageError, match=r"no trusted key 'carol'; names: alice, bob"):
        ring.remove("carol")
    (ring.root / "trusted" / "bob").write_text("rubbish")
    with pytest.raises(UsageError, match="trusted/bob is not a public key"):
        ring.trusted()


def test_the_commands(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alice signs and shares; Bob refuses, trusts, restores, and trusts no longer."""
    cli = Cli(tmp_path)
    alice, bob = {"DFLASH_CACHE_TRUST": str(tmp_path / "alice")}, {"DFLASH_CACHE_TRUST": str(tmp_path / "bob")}
    public = cli.json("keygen", **alice)["public_key"]
    assert "signing.key exists and is never overwritten" in cli.run("keygen", rc=2, **alice).stderr
    assert cli.json("snapshot", "--name", "run", "--sign", **alice)["signed_by"] == public
    assert cli.json("list", **alice)["snapshots"][0]["trust"] == "signed by self"
    new = str(tmp_path / "new")
    for more in ((), ("--dry-run",), ("--json",), ("--force",)):
        done = cli.run("restore", "run", "--to", new, *more, rc=6, **bob)
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: snapshot ")
        assert f"trust add {public}" in done.stderr
        assert done.stdout == ""
        assert not Path(new).exists()
    assert cli.json("list", **bob)["snapshots"][0]["trust"] == "untrusted"
    assert "no keys" in cli.run("trust", "list", **bob).stderr
    cli.run("trust", "add", public, rc=2, **bob)
    cli.run("trust", "add", public, "--name", "alice", **bob)
    assert [one["name"] for one in cli.json("trust", "list", **bob)["keys"]] == ["alice"]
    assert cli.json("restore", "run", "--to", new, **bob)["trust"] == {
        "standing": "signed",
        "signer": "alice",
        "reason": None,
    }
    cli.run("trust", "remove", "alice", **bob)
    assert "not trusted here" in cli.run("restore", "run", "--to", new, rc=6, **bob).stderr
    allowed = cli.run("restore", "run", "--to", new, "--allow-untrusted", **bob)
    assert "warning: UNTRUSTED" in allowed.stderr
    assert cli.json("trust", "own", "run", **bob)["own"] == [cli.json("list", **bob)["snapshots"][0]["id"]]
    assert cli.json("restore", "run", "--to", new, **bob)["trust"]["standing"] == "own"


def test_a_key_of_its_own_file(tmp_path: Path, cache: Path) -> None:
    cli = Cli(tmp_path)
    key, trusted = str(tmp_path / "ci.key"), str(tmp_path / "elsewhere")
    made = cli.json("keygen", "--out", key)
    assert "never overwritten" in cli.run("keygen", "--out", key, rc=2).stderr
    assert "--sign" in cli.run("snapshot", "--name", "run", "--key", key, rc=2).stderr
    assert "keygen" in cli.run("snapshot", "--name", "run", "--sign", rc=2).stderr
    cli.run("snapshot", "--name", "run")
    assert cli.json("sign", "run", "--key", key)["signed_by"] == made["public_key"]
    cli.run("trust", "add", f"{key}.pub", DFLASH_CACHE_TRUST=trusted)
    assert cli.json("list", DFLASH_CACHE_TRUST=trusted)["snapshots"][0]["trust"] == "signed by ci.key"
    assert "not a public key" in cli.run("trust", "add", key, DFLASH_CACHE_TRUST=trusted, rc=2).stderr


def test_a_key_file_that_holds_no_key_names_the_repair_and_can_be_removed(tmp_path: Path) -> None:
    ring = open_keyring(tmp_path / "trust")
    _, good = signing.generate()
    ring.add("alice", good)
    (ring.root / "trusted" / "bob").write_text("garbage\n")
    (ring.root / "trusted" / "eve").mkdir()
    with pytest.raises(UsageError, match=r"bob is not a public key.*; dflash cache trust remove bob$"):
        ring.trusted()
    assert ring.remove("bob") == ("bob",)
    with pytest.raises(UsageError, match=r"eve cannot be read .*; dflash cache trust remove eve$"):
        ring.trusted()
    (ring.root / "trusted" / "eve").rmdir()
    assert ring.remove(good) == ("alice",)
    with pytest.raises(UsageError, match="no trusted key 'bob'; names: none"):
        ring.remove("bob")


def test_a_snapshot_that_is_pruned_meanwhile_is_said_to_be_pruned(filled: Store) -> None:
    id_ = filled.read_ref("run")
    content = filled.read_manifest(id_)
    assert trust.require(filled, id_, content).standing is Standing.OWN
    filled.manifest_path(id_).unlink()
    with pytest.raises(UsageError, match=f"snapshot {id_[:12]} was pruned a moment ago"):
        trust.require(filled, id_, content)
