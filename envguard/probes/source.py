"""The project's own code: what each file's content is, what git says of it, and whether it runs code of strangers.

In: the project's directory and the paths that the policy names as source. Out: a ``SourceCode``. Files are hashed and
parsed, never imported; git is only asked (no lock is taken, nothing is written). What git cannot tell is a value.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from envguard.errors import ProbeError
from envguard.frozen import Frozen

GIT_TIMEOUT = 20.0
"""Seconds; git status of a large tree on a network file system takes its time."""

_MENTION = re.compile(rb"trust_remote_code[\"']?\s*[=:]")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class RemoteCode(Frozen):
    """A call that runs code from a model repository without saying which commit."""

    path: str
    line: int
    revision: str | None
    """The revision as written, None where there is none."""


class SourceCode(Frozen):
    """The code at one moment; paths are relative to the project and use forward slashes."""

    files: Mapping[str, str]
    """Path → sha256 of the content."""
    unpinned: tuple[RemoteCode, ...]
    uncommitted: tuple[str, ...] | None
    """Files that differ from the last commit, new ones included; None where git cannot tell."""
    git_problem: str | None
    """Why git cannot tell."""


def read_source(root: Path, entries: Sequence[str]) -> SourceCode:
    """Read the files and directories ``entries`` below ``root``; bytecode and hidden files do not count.

    Raises:
        ProbeError: a file cannot be read.
    """
    files: dict[str, str] = {}
    unpinned: list[RemoteCode] = []
    for name, content in _contents(root, entries):
        files[name] = hashlib.sha256(content).hexdigest()
        if name.endswith(".py") and _MENTION.search(content):
            unpinned += find_remote_code(content, name)
    uncommitted, problem = _ask_git(root, entries)
    return SourceCode(files=files, unpinned=tuple(unpinned), uncommitted=uncommitted, git_problem=problem)


def hash_source(root: Path, entries: Sequence[str]) -> dict[str, str]:
    """Path → sha256 of every file of ``entries``; raises as ``read_source`` does."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in _contents(root, entries)}


def _contents(root: Path, entries: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(relative path, content) of each file, in order."""
    base = os.fspath(root)
    for name in sorted({name for entry in entries for name in _walk(base, entry)}):
        path = os.path.join(base, name)
        try:
            with open(path, "rb", buffering=0) as handle:
                content = handle.readall()
        except OSError as error:
            raise ProbeError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
        yield name, content


def _walk(base: str, entry: str) -> Iterator[str]:
    """Relative to ``base``. (With strings: one Path for each file takes longer than reading it.)"""
    place = os.path.join(base, entry)
    if os.path.isfile(place):
        yield os.path.relpath(place, base)
        return
    for directory, names, files in os.walk(place):
        names[:] = [name for name in names if name != "__pycache__" and not name.startswith(".")]
        inside = os.path.relpath(directory, base)
        for name in files:
            if not name.startswith(".") and not name.endswith(".pyc") and os.path.isfile(f"{directory}/{name}"):
                yield os.path.normpath(f"{inside}/{name}")


def find_remote_code(source: bytes, path: str) -> list[RemoteCode]:
    """Calls and dictionaries in ``source`` with ``trust_remote_code=True`` and no full commit as ``revision``.

    A revision that only the running program knows is taken as pinned; a constant of the module is looked up. What is
    no Python fails by itself and is passed over.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: list[RemoteCode] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call | ast.Dict):
            continue
        pairs = _pairs(node)
        if not _is_true(pairs.get("trust_remote_code")):
            continue
        revision = pairs.get("revision")
        if isinstance(revision, ast.Name):
            revision = constants.get(revision.id, revision)
        written = None
        if isinstance(revision, ast.Constant) and revision.value is not None:
            written = str(revision.value)
        elif revision is not None and not isinstance(revision, ast.Constant):
            continue
        if written is None or not _COMMIT.fullmatch(written):
            found.append(RemoteCode(path=path, line=node.lineno, revision=written))
    return sorted(found, key=lambda each: each.line)


def _pairs(node: ast.Call | ast.Dict) -> dict[str, ast.expr]:
    if isinstance(node, ast.Call):
        return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    pairs = zip(node.keys, node.values, strict=True)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _ask_git(root: Path, entries: Sequence[str]) -> tuple[tuple[str, ...] | None, str | None]:
    command = ["git", "-C", str(root), "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", *entries]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"git cannot be asked ({error})"
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        return None, f"git cannot tell ({said.removeprefix('fatal: ')})"
    return tuple(_porcelain(done.stdout.decode(errors="replace"))), None


def _porcelain(text: str) -> Iterator[str]:
    """The paths in ``git status --porcelain=v1 -z``; a rename's old name follows its new one."""
    records = iter(text.split("\0"))
    for record in records:
        if not record:
            continue
        yield record[3:]
        if record[0] in "RC":
            next(records, None)
