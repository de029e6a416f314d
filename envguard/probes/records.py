"""RECORD: what an installer says it has put where, and the identity of a distribution that follows from it.

In: the bytes of a RECORD, a site-packages directory, or a ``.whl`` file. Out: rows, and a fingerprint that is the same
for the wheel, for what uv installed from it and for what pip installed from it. Tolerant: a line that is none is left
out and a RECORD that is none is a ``problem``, never an exception. It reads no file that a RECORD names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from envguard.errors import ProbeError
from envguard.frozen import Frozen
from envguard.probes.files import read_head
from envguard.statcache import StatCache, has_settled, signature

MAX_BYTES = 64 << 20
"""torch's RECORD has one megabyte; what is far larger is not read."""

_OF_THE_INSTALL = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}
_SUFFIXES = (".py", ".so", ".pyd")


class Row(NamedTuple):
    """One line."""

    path: str
    """Relative to site-packages, or absolute."""
    hash: str
    """Such as ``sha256=...``; "" where there is none."""
    size: int | None


class Record(Frozen):
    """What one RECORD tells, without its rows."""

    fingerprint: str | None
    """Identity of the content that was installed; None where RECORD is absent, damaged or without hashes."""
    modules: tuple[tuple[str, str], ...]
    """(import name, path of the file that the import must execute) at the top of site-packages."""
    startup: tuple[str, ...]
    """Its files that run, or may run, at every start of the interpreter: ``.pth``, sitecustomize, usercustomize."""
    problem: str | None
    """What is damaged, None where nothing is."""


UNREADABLE = Record(
    fingerprint=None, modules=(), startup=(), problem=f"RECORD cannot be read, or has over {MAX_BYTES} bytes"
)
"""A RECORD that is there and tells nothing."""


def parse_record(data: bytes) -> tuple[Row, ...]:
    """The lines of a RECORD that are lines of a RECORD."""
    text = data.decode("utf-8", errors="surrogateescape")
    if "\0" in text or "\r" in text:
        text = "".join(line + "\n" for line in text.replace("\r\n", "\n").split("\n") if "\0" not in line)
    lines = text.split("\n")
    fields: Iterable[list[str]] = _quoted(lines) if '"' in text else [line.rsplit(",", 2) for line in lines]
    new = tuple.__new__  # Row's own constructor is Python code, and an environment with torch has 26,000 lines
    return tuple(
        [
            new(Row, (path, digest, int(size) if size.isdecimal() and len(size) < 20 else None))
            for path, digest, size in [each for each in fields if len(each) == 3 and each[0]]
        ]
    )


def _quoted(lines: list[str]) -> Iterable[list[str]]:
    import csv

    reader = csv.reader(line + "\n" for line in lines)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:  # one line is no CSV; the next one may be
            continue


def fingerprint(rows: Iterable[Row]) -> str | None:
    """sha256 over the sorted ``path,hash`` of what the artifact itself brings; None where nothing has a hash.

    Left out is what the installer adds or rewrites: lines without a hash, files outside site-packages (scripts get the
    path of the environment), bytecode, and its own notes in the metadata directory.
    """
    lines = sorted(f"{path},{row.hash}" for row in rows if (path := _artifact_path(row)) is not None)
    if not lines:
        return None
    return sha256("\n".join(lines).encode("utf-8", errors="surrogateescape")).hexdigest()


def _artifact_path(row: Row) -> str | None:
    path = row.path
    if not row.hash or path.startswith(("../", "/")) or path.endswith(".pyc"):
        return None
    first, _, rest = path.partition("/")
    if first.endswith(".data"):  # inside a wheel; purelib and platlib are spread over site-packages when installed
        scheme, _, spread = rest.partition("/")
        return spread if scheme in ("purelib", "platlib") and spread else None
    if first.endswith(".dist-info") and (
        rest in _OF_THE_INSTALL or (rest.startswith("uv_") and rest.endswith(".json"))
    ):
        return None
    return path


def wheel_fingerprint(wheel: Path) -> str:
    """The fingerprint that an installation of ``wheel`` will have.

    Raises:
        ProbeError: it is no wheel, or its RECORD cannot be read.
    """
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _is_record(name)]
            if len(names) != 1:
                raise ProbeError(f"{wheel}: {len(names)} RECORD files are in it, a wheel has one: build it anew")
            found = fingerprint(parse_record(archive.read(names[0])))
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ProbeError(f"{wheel}: is no readable wheel ({error}): fetch or build it anew") from error
    if found is None:
        raise ProbeError(f"{wheel}: its RECORD holds no hash: build it anew")
    return found


def _is_record(name: str) -> bool:
    return name.count("/") == 1 and name.endswith(".dist-info/RECORD")


def summarize(rows: tuple[Row, ...], directory: str) -> Record:
    """What the RECORD of the metadata directory ``directory`` tells."""
    own = f"{directory}/RECORD"
    is_whole = any(row.path == own for row in rows)
    return Record(
        fingerprint=fingerprint(rows) if is_whole else None,
        modules=tuple(sorted({module: row.path for row in rows if (module := _module(row.path))}.items())),
        startup=tuple(sorted(row.path for row in rows if is_startup(row.path))),
        problem=None if is_whole else "RECORD is damaged: it does not name itself, which every installer writes",
    )


def is_startup(path: str) -> bool:
    """Whether a file of site-packages runs, or may run, at every start."""
    if not path.endswith(".pth") and not path.startswith(("sitecustomize", "usercustomize")):
        return False  # nearly all
    head = path.partition("/")[0]
    if head != path:
        return head in ("sitecustomize", "usercustomize") and path.partition("/")[2].startswith("__init__.")
    return path.endswith(".pth") or path.startswith(("sitecustomize.", "usercustomize."))


def _module(path: str) -> str | None:
    head, _, rest = path.partition("/")
    if rest:
        return head if head.isidentifier() and rest.startswith("__init__.") and rest.endswith(_SUFFIXES) else None
    name = head.partition(".")[0]
    return name if name.isidentifier() and head.endswith(_SUFFIXES) else None


def read_rows(site_packages: Path, directory: str) -> tuple[Row, ...]:
    """The rows of one installed distribution; () where its RECORD is absent, unreadable or far too large."""
    data = _read(site_packages / directory / "RECORD")
    return () if data is None else parse_record(data)


def read_records(site_packages: Path, directories: Iterable[str], cache: StatCache) -> dict[str, Record]:
    """Metadata directory to what its RECORD tells, through the cache; one without a readable RECORD has no entry."""
    import time

    now = time.time_ns()
    name = f"records-{sha256(os.fsencode(site_packages)).hexdigest()[:20]}.json"
    known = cache.read(name) or {}
    found: dict[str, Record] = {}
    fresh: dict[str, list[object]] = {}
    for directory in directories:
        path = os.path.join(site_packages, directory, "RECORD")
        try:
            status = os.stat(path)
        except OSError:
            continue
        sign, kept = signature(status), known.get(directory)
        if kept is not None and kept[0] == sign:
            modules, startup = tuple((module, place) for module, place in kept[2]), tuple(kept[3])
            record = Record(fingerprint=kept[1], modules=modules, startup=startup, problem=kept[4])
        elif (data := _read(Path(path))) is not None:
            record = summarize(parse_record(data), directory)
        else:
            continue
        found[directory] = record
        if has_settled(status, now):
            fresh[directory] = [sign, record.fingerprint, record.modules, record.startup, record.problem]
    if {key: value[0] for key, value in fresh.items()} != {key: value[0] for key, value in known.items()}:
        cache.write(name, fresh)
    return found


def _read(path: Path) -> bytes | None:
    """A RECORD of sane size; None where it is anything else."""
    try:
        data = read_head(path, MAX_BYTES + 1)
    except OSError:  # read_records makes a problem of it
        return None
    return data if len(data) <= MAX_BYTES else None
