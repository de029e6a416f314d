"""What a file of an Inductor cache is, told from its relative path alone.

In: a posix path relative to the cache directory. Out: a ``Kind``, and for kinds whose name is a checksum of the content
(torch 2.11 ``_inductor/codecache.py``: ``sha256_hash``, ``code_hash``) whether name and content agree.
It opens nothing.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import re

from cache_tools.templates import hashed_texts


class Kind(enum.StrEnum):
    """Kinds of file; the order is that of restoring: what is pointed at comes before what points at it."""

    NATIVE = "native"
    SOURCE = "source"
    TRITON = "triton"
    AUTOTUNE = "autotune"
    GEMM = "gemm"
    KEYS = "keys"
    """Ours: what the keys of entries were made of (records.py)."""
    UNKNOWN = "unknown"
    PGO = "pgo"
    PRECOMPILE = "precompile"
    FXGRAPH = "fxgraph"
    AOTAUTOGRAD = "aotautograd"
    LOCK = "lock"
    TEMP = "temp"
    HEADER = "header"


RESTORE_ORDER: dict[Kind, int] = {kind: index for index, kind in enumerate(Kind)}
"""A restore that is killed half way leaves misses, never a graph entry without the files it names."""

NOT_KEPT = frozenset({Kind.LOCK, Kind.TEMP, Kind.HEADER})
"""Never part of a snapshot: state of one process, leftovers of failed writes, and host-specific compiler output."""

GPU_KINDS = frozenset({Kind.TRITON, Kind.AUTOTUNE})
"""In a live cache exactly when something was compiled for a GPU: torch unpacks bundled kernels into ``triton/``. A
snapshot may lack them; its manifest counts the bundled ones."""

GRAPHS = frozenset({Kind.FXGRAPH, Kind.AOTAUTOGRAD})
"""Pickles that torch finds by the key in the name of their folder, and executes."""

SELF_NAME = re.compile(r"[a-z2-7]{51}")
"""A checksum as torch writes it into a name."""
_DIGITS = str.maketrans("abcdefghijklmnopqrstuvwxyz234567", "0123456789abcdefghijklmnopqrstuv")
"""From base 32 of RFC 4648 to that of ``int``, which is read in a tenth of the time."""

_HASHED_FOLDER = re.compile(r"[a-z0-9]{2}|[a-z0-9]{51,64}")
_NAMED_BY_CHECKSUM = re.compile(r"(?:[a-z0-9]{2}|[a-z0-9]{51,64})/c?[a-z2-7]{51}")
_TEMP = re.compile(r"\.\d+\.\d+\.tmp|tmp\..+|\.tmp-.*|.*\.tmp")
_FRESH = re.compile(r"tmp[a-z0-9_]{8}")
"""What ``TORCHINDUCTOR_FORCE_DISABLE_CACHES`` leaves: a folder for each compile, never read again."""
_TOP = {
    "fxgraph": Kind.FXGRAPH,
    "aotautograd": Kind.AOTAUTOGRAD,
    "triton": Kind.TRITON,
    "cache": Kind.GEMM,
    "cache_tools": Kind.KEYS,
}
_SUFFIX = {
    ".py": Kind.SOURCE,
    ".cpp": Kind.SOURCE,
    ".h": Kind.SOURCE,
    ".cu": Kind.SOURCE,
    ".so": Kind.NATIVE,
    ".o": Kind.NATIVE,
    ".cubin": Kind.NATIVE,
    ".hsaco": Kind.NATIVE,
    ".best_config": Kind.AUTOTUNE,
    ".gch": Kind.HEADER,
    ".pch": Kind.HEADER,
}


def kind_of(path: str) -> Kind:
    """The kind of the file at ``path`` (relative, posix)."""
    top, inside, _ = path.partition("/")
    name = path[path.rfind("/") + 1 :]
    if name.endswith(".lock") or (inside and top == "locks"):
        return Kind.LOCK
    if "tmp" in path and any(_TEMP.fullmatch(part) for part in path.split("/")):
        return Kind.TEMP
    if inside and top == "precompiled_headers":
        return Kind.HEADER
    if inside and top in _TOP:
        return _TOP[top]
    if inside and top == "dynamo":
        return Kind.PGO if name.startswith("code_state_") else Kind.PRECOMPILE
    dot = name.rfind(".")
    return _SUFFIX.get(name[dot:], Kind.UNKNOWN) if path.count("/") == 1 and dot > 0 else Kind.UNKNOWN


def is_left_over(path: str) -> bool:
    """Whether the file at ``path`` lies in a folder of ``TORCHINDUCTOR_FORCE_DISABLE_CACHES``.

    (Not a kind: manifests name the kind of each entry, and older ones hold such files as unknown.)
    """
    top, inside, _ = path.partition("/")
    return bool(inside) and _FRESH.fullmatch(top) is not None


def is_torchs(path: str) -> bool:
    """Whether a file at ``path`` looks like one of a compile cache: sources are in folders named by a checksum."""
    kind = kind_of(path)
    if is_left_over(path):
        return True
    if kind in (Kind.SOURCE, Kind.NATIVE):
        return _HASHED_FOLDER.fullmatch(path.partition("/")[0]) is not None
    return kind is not Kind.UNKNOWN


def tells_a_cache(path: str) -> bool:
    """Whether a file at ``path`` shows that its directory is a compile cache: ``uv.lock`` or ``ui/main.py`` do not.

    (``is_torchs`` says what may lie in one.)
    """
    kind = kind_of(path)
    if kind in (Kind.SOURCE, Kind.NATIVE, Kind.AUTOTUNE):
        return _NAMED_BY_CHECKSUM.match(path) is not None
    return kind in GRAPHS or kind in (Kind.TRITON, Kind.KEYS)


def is_self_named(path: str, kind: Kind) -> bool:
    """Whether torch named this file by a checksum of its content alone.

    ``.cpp`` names also hash the compile command. For templates see ``templates.py``.
    """
    return kind in GRAPHS or (kind is Kind.SOURCE and path.endswith(".py"))


def name_matches(path: str, kind: Kind, data: bytes) -> bool:
    """Whether ``data`` hashes to the name of the self-named file at ``path``."""
    if kind is not Kind.SOURCE:
        return digest_matches(path, hashlib.sha256(data).digest())
    name = path.rpartition("/")[2]
    named = _named(name[1:-3]) if name.startswith("c") and name.endswith(".py") else None
    text = data.decode("utf-8", errors="replace")
    # torch strips the *text*, so Unicode white space goes too.
    return named is not None and any(
        named == _cut(hashlib.sha256(each.encode()).digest())
        for each in itertools.chain((text.strip(),), hashed_texts(text))
    )


def digest_matches(path: str, digest: bytes) -> bool:
    """``name_matches`` for the pickles, whose name is their content's sha256 (``digest``)."""
    return _named(path.rpartition("/")[2]) == _cut(digest)


def named_digests(path: str) -> tuple[bytes, ...]:
    """The two digests that a pickle of this name can have: torch cuts the last bit off. Empty if it is no checksum."""
    named = _named(path.rpartition("/")[2])
    return () if named is None else tuple((named << 1 | last).to_bytes(32, "big") for last in (0, 1))


def _named(checksum: str) -> int | None:
    """The 255 bits that a checksum in a name shows; None if it is none."""
    return int(checksum.translate(_DIGITS), 32) if SELF_NAME.fullmatch(checksum) else None


def _cut(digest: bytes) -> int:
    """The 255 bits of ``digest`` that torch writes: base 32, without the last digit."""
    return int.from_bytes(digest, "big") >> 1
