"""The lock and the policy of the base that a change is compared with: what LCK003 needs.

In: a git revision, or another lock file or project directory. Out: a frozen ``Base``. It asks git (``git show``), whose
shallow clones may lack the revision: then the ``problem`` says what to fetch. It judges nothing and changes nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from envguard.errors import LockError
from envguard.frozen import Frozen
from envguard.lock import Lock, load_lock, parse_lock

TIMEOUT = 30.0
"""Seconds for one ``git show``."""


class Base(Frozen):
    """The state before a change."""

    name: str
    """As the person named it."""
    before: Lock | None
    """The base's lock; None where it has none, or where there is a ``problem``."""
    after: Lock | None
    """The lock as it is now; None where it cannot be read (LCK002 says why)."""
    policy_changed: bool
    """Whether the policy file differs from the base's; false where the base is a lock alone."""
    problem: str | None
    """Why the base cannot be read."""


class _Unreadable(Exception):
    """The message is the ``problem``."""


def read_base(name: str, policy: Path, lock: Path) -> Base:
    """Read what ``policy`` and ``lock`` were at ``name``; what cannot be read is its ``problem``."""
    other = Path(name)
    try:
        if other.is_file():
            old_lock: bytes | None = other.read_bytes()
            old_policy: bytes | None = policy.read_bytes()
        elif other.is_dir():
            old_lock = _read(other / lock.relative_to(policy.parent))
            old_policy = _read(other / policy.name)
        else:
            _require_revision(name, policy.parent)
            old_lock, old_policy = _show(name, lock), _show(name, policy)
        before = None if old_lock is None else parse_lock(old_lock, Path(f"{name}:{lock.name}"))
        policy_changed = old_policy != policy.read_bytes()
    except (_Unreadable, LockError) as error:
        return _unreadable(name, str(error))
    except OSError as error:
        return _unreadable(name, f"{error.filename}: {error.strerror}")
    return Base(name=name, before=before, after=_now(lock), policy_changed=policy_changed, problem=None)


def _unreadable(name: str, why: str) -> Base:
    problem = f"the base {name} cannot be read: {why}"
    return Base(name=name, before=None, after=None, policy_changed=False, problem=problem)


def _now(lock: Path) -> Lock | None:
    try:
        return load_lock(lock)
    except LockError:
        return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _require_revision(name: str, directory: Path) -> None:
    done = _git(directory, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if done.returncode == 0:
        return
    if _git(directory, "rev-parse", "--git-dir").returncode != 0:
        raise _Unreadable(f"{directory} is in no git repository, and there is no file or directory of this name")
    is_shallow = _git(directory, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
    branch = name.removeprefix("origin/")
    shallow = f"; this clone is shallow: git fetch --depth 1 origin {branch}:refs/remotes/origin/{branch}"
    raise _Unreadable("git knows no such revision" + (shallow if is_shallow else ", and there is no such file"))


def _show(name: str, path: Path) -> bytes | None:
    """The content of ``path`` at a revision; None where it did not exist there."""
    listed = _git(path.parent, "ls-tree", "--name-only", "--end-of-options", name, f"./{path.name}")
    if listed.returncode != 0:
        raise _Unreadable(_words(listed))
    if not listed.stdout.strip():
        return None
    done = _git(path.parent, "show", f"{name}:./{path.name}")
    if done.returncode != 0:
        raise _Unreadable(_words(done))
    return done.stdout


def _git(directory: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(directory), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unreadable(f"git cannot be run ({error})") from error


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split()) or f"git ends with exit {done.returncode}"
