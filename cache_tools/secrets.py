"""Is there something in a snapshot that must not leave this machine?

In: the bytes of cache files, and the environment whose secrets to look for. Out: ``Finding``s that say which file holds
what kind of thing, and the NAME of the variable it came from, never the value. Inductor's graph entries embed every
environment variable whose name holds TORCH, DYNAMO, INDUCTOR or TRITON (torch 2.11 ``_dynamo/debug_utils.py``).
Nothing is unpickled: one expression of RE2 runs over each line of the raw bytes that holds a word every secret of some
form must hold, and such words are looked for ten times as fast. It cannot find a secret of no known form.
"""

from __future__ import annotations

import enum
import functools
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import re2
from ahocorasick_rs import BytesAhoCorasick, MatchKind

from cache_tools.errors import SecretsError
from cache_tools.kinds import Kind
from cache_tools.manifest import ManifestEntry
from cache_tools.store import Store

SHAPES: dict[str, str] = {
    # Prefixes that issuers document so that scanners find them, with a length that makes chance matches rare.
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{40,}",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "Slack token": r"\bxox[abeprs]-[A-Za-z0-9-]{20,}",
    "Google API key": r"\bAIza[A-Za-z0-9_-]{35}",
    "model provider key": r"\bsk-(?:proj|ant|svcacct)-[A-Za-z0-9_-]{32,}",
    "private key": r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    # Databases, redis and git remotes carry their password so (RFC 3986, 3.2.1): ://user:password@
    "URL with a password": r"://[^\s/:@'\"<>{}$]{0,60}:[^\s/@'\"<>{}$]{1,100}@",
}
ANCHORS: dict[str, tuple[str, ...]] = {
    "AWS access key": ("AKIA", "ASIA"),
    "Hugging Face token": ("hf_",),
    "GitHub token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "GitLab token": ("glpat-",),
    "Slack token": ("xox",),
    "Google API key": ("AIza",),
    "model provider key": ("sk-proj-", "sk-ant-", "sk-svcacct-"),
    "private key": ("PRIVATE KEY-----",),
    "JSON web token": (".eyJ",),
    "URL with a password": ("://",),
}
"""Kind → words of which every match of its shape holds one. No shape matches across lines."""
_DUMP_ANCHOR = "os.environ["
_DUMP = r"os\.environ\[['\"][^'\"\n]{1,200}['\"]\] = ['\"][^\n]*"
"""One line of the environment dump, as torch writes it."""
_DUMP_PARTS = re.compile(rb"os\.environ\[['\"]([^'\"\n]{1,200})['\"]\] = ['\"](.*)", re.DOTALL)
_SENSITIVE = re.compile(
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY)(?:_|\d*$)"
    r"|_(?:KEY|PWD|PAT|AUTH)$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"[01]?|true|false|yes|no|on|off|none|[/~.].*", re.IGNORECASE | re.DOTALL)
"""Switches and paths: ``HF_TOKEN_PATH=/run/secrets/hf`` says where a secret is, not what it is."""
MIN_VALUE = 8
"""Characters from which a value of this environment is looked for: shorter ones are found everywhere by chance."""
LOOKED_FOR = 256
"""Characters at the beginning of a value that are looked for: a file of megabytes can be a variable's value."""
OVERLAP = 8192
"""Bytes of a piece that are looked at again with the next: no token of a known form is longer."""
LISTED = 10
VARIABLE = "environment variable"
_BINARY = (".so", ".o", ".cubin", ".hsaco", ".spv")


class Policy(enum.StrEnum):
    """What a finding means."""

    FAIL = "fail"
    WARN = "warn"


class Finding(NamedTuple):
    """Something that looks like a secret, without it."""

    path: str
    """Of the cache file."""
    kind: str
    """``environment variable``, or a key of ``SHAPES``."""
    variable: str | None
    """Name of the environment variable that holds or held it, where known."""

    def __str__(self) -> str:
        what = self.kind if self.kind != VARIABLE else "value of an environment variable"
        return f"{self.path} holds a {what}".replace("a AWS", "an AWS") + (f" ({self.variable})" * bool(self.variable))


class Scanner:
    """Looks at files, from any number of threads, and remembers what it found and what it looked at."""

    def __init__(self, policy: Policy, environ: Mapping[str, str] = os.environ, home: Path | None = None) -> None:
        self.policy = policy
        secret = {name: value for name, value in environ.items() if _is_secret(name, value)}
        self._values = {value[:LOOKED_FOR].encode(): name for name, value in secret.items()}
        values = sorted((value.decode() for value in self._values), key=len, reverse=True)
        whole = "|".join([_DUMP, *map(re2.escape, values), *SHAPES.values()])
        self._whole = whole.encode()
        self._anchors = _words(_DUMP_ANCHOR, *values, *itertools.chain(*ANCHORS.values()))
        home_folder = os.fsencode(f"{home or os.path.expanduser('~')}/")  # "~" itself where nobody knows
        self._home = BytesAhoCorasick([home_folder]) if len(home_folder) > 2 else None
        self._seen: set[str] = set()
        self._found: set[Finding] = set()
        self._homes: set[str] = set()

    @functools.cached_property
    def _pattern(self) -> Any:
        return re2.compile(self._whole, _options())  # 3 ms, which files without a word to look at do not owe

    def look(self, path: str, kind: Kind, data: bytes) -> None:
        """Look at one file, if files of its kind hold text."""
        if not has_text(path, kind):
            return
        self._seen.add(path)
        end = -1
        for _, at, _ in self._anchors.find_matches_as_indexes(data):
            if at > end:
                start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
                end = len(data) if end < 0 else end
                for match in self._pattern.finditer(data[start:end]):
                    self._found.update(self._classify(path, match.group()))
        if self._home and self._home.find_matches_as_indexes(data):
            self._homes.add(path)

    def through(self, path: str, kind: Kind, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces of one large file, looked at on their way."""
        before = b""
        for chunk in chunks:
            self.look(path, kind, before + chunk)
            before = chunk[-OVERLAP:]
            yield chunk

    def look_at_rest(self, store: Store, entries: Iterable[ManifestEntry]) -> None:
        """Look, in the store, at every entry that ``look`` has not seen.

        Raises:
            CorruptError: one of them is damaged.
        """
        for entry in entries:
            if entry.path not in self._seen and has_text(entry.path, entry.kind):
                self.look(entry.path, entry.kind, store.read_blob(entry.sha256, limit=entry.size))

    def conclude(self, store: Store, entries: Collection[ManifestEntry]) -> None:
        """Before a snapshot of ``entries`` becomes visible: under ``fail``, look at all of them and refuse findings.

        (Not those of files that were looked at and then not kept.)

        Raises:
            SecretsError: there are findings and the policy is ``fail``.
            CorruptError: one of the entries is damaged.
        """
        if self.policy is Policy.FAIL:
            self.look_at_rest(store, entries)
            kept = {entry.path for entry in entries}
            if found := tuple(one for one in self.findings if one.path in kept):
                advice = "unset the variables and compile again, or keep it private with --secrets warn"
                raise SecretsError("\n".join((*lines(found), f"not kept: {advice}")))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, sorted; once for each file, kind and variable."""
        return tuple(sorted(self._found, key=lambda one: (one.path, one.kind, one.variable or "")))

    @property
    def home_paths(self) -> int:
        """Files that name a path under this user's home: no secret, but it tells names."""
        return len(self._homes)

    def _classify(self, path: str, text: bytes) -> Iterable[Finding]:
        dumped = _DUMP_PARTS.match(text)
        if dumped is None:
            kind = next((kind for kind, shape in _shapes().items() if shape.fullmatch(text)), None)
            known = self._values.get(text)
            yield Finding(path=path, kind=VARIABLE if known else kind or VARIABLE, variable=known)
            return
        name = dumped[1].decode(errors="replace")
        value = dumped[2].rstrip(b"'\"").decode(errors="replace")
        shapes = [kind for kind, shape in _shapes().items() if shape.search(dumped[2])]
        for kind in shapes:
            yield Finding(path=path, kind=kind, variable=name)
        if not shapes and _SENSITIVE.search(name) and not _HARMLESS.fullmatch(value):
            yield Finding(path=path, kind=VARIABLE, variable=name)
        for secret, owner in self._values.items():
            if owner != name and secret in dumped[2]:
                yield Finding(path=path, kind=VARIABLE, variable=owner)


def has_text(path: str, kind: Kind) -> bool:
    """Whether files of this kind hold text that somebody wrote; machine code is left out."""
    if kind is Kind.TRITON:
        return path.endswith(".json")
    return kind is not Kind.NATIVE and not path.endswith(_BINARY)


def lines(findings: tuple[Finding, ...]) -> list[str]:
    """At most ``LISTED`` findings in words."""
    more = [f"and {len(findings) - LISTED} more"] if len(findings) > LISTED else []
    return [*map(str, findings[:LISTED]), *more]


def _is_secret(name: str, value: str) -> bool:
    if len(value) < MIN_VALUE or not value.isprintable() or _HARMLESS.fullmatch(value):
        return False
    if _SENSITIVE.search(name):
        return True
    return any(word in value for words in ANCHORS.values() for word in words) and bool(
        _any_shape().search(value.encode())
    )


@functools.cache
def _shapes() -> dict[str, re.Pattern[bytes]]:
    return {kind: re.compile(shape.encode()) for kind, shape in SHAPES.items()}


@functools.cache
def _any_shape() -> Any:
    return re2.compile("|".join(SHAPES.values()).encode(), _options())  # a tenth of the time of re


def _words(*words: str) -> BytesAhoCorasick:
    return BytesAhoCorasick([word.encode() for word in words], matchkind=MatchKind.LeftmostFirst)


def _options() -> object:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, whatever they are
    options.max_mem = 64 << 20
    options.log_errors = False
    return options
