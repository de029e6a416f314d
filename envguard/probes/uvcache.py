"""The original of an edited file, and whether the edit is in uv's cache too: both are told by that cache.

In: files that differ from RECORD. Out: the same files, with the lines that were changed and ``in_cache``. uv installs
by hard link where it can, so that an edit in site-packages edits the cached wheel and every environment made from it.
Nothing is written, and uv is not called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from envguard.frozen import replace
from envguard.pkg import canonical
from envguard.probes.contents import ChangedFile
from envguard.probes.distributions import Distribution
from envguard.probes.files import read_head
from envguard.probes.hashing import ALGORITHMS, hash_file

MAX_EXPLAINED = 20
"""Files a distribution whose lines are compared; more is no edit but another build."""
MAX_TEXT = 2 << 20
MAX_COMPARED = 4000
"""Lines that are compared in the end; where more differ, they are told as one range."""


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where uv keeps its cache: ``UV_CACHE_DIR``, else ``$XDG_CACHE_HOME/uv``, else ``~/.cache/uv``."""
    if given := environ.get("UV_CACHE_DIR"):
        return Path(given)
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "uv"


def explain(
    changed: Sequence[ChangedFile], distributions: Sequence[Distribution], site_packages: Path, cache: Path
) -> tuple[ChangedFile, ...]:
    """``changed`` with ``lines`` and ``in_cache`` filled in where the cache can tell."""
    edited = {each.distribution for each in changed if each.kind in ("size", "content")}
    installed = {dist.name: dist for dist in distributions if dist.name in edited}
    unpacked = _unpacked(cache, installed.values()) if installed else {}
    explained: dict[str, int] = {}
    found = []
    for each in changed:
        dist = installed.get(each.distribution)
        count = explained.get(each.distribution, 0)
        if dist is None or each.kind not in ("size", "content") or count >= MAX_EXPLAINED:
            found.append(each)
            continue
        explained[each.distribution] = count + 1
        found.append(_explain(each, dist, unpacked.get(dist.directory, ()), site_packages, cache))
    return tuple(found)


def _explain(
    each: ChangedFile, dist: Distribution, unpacked: Sequence[Path], site_packages: Path, cache: Path
) -> ChangedFile:
    place = site_packages / each.path
    algorithm = each.hash.partition("=")[0]
    if algorithm not in ALGORITHMS:
        return each
    try:
        status = place.stat()
    except (OSError, ValueError):
        return each
    here = _hash_text(place, status, algorithm)
    original: bytes | None = None
    in_cache = False
    for root in unpacked:
        copy = root / each.path
        try:
            other = copy.stat()
        except (OSError, ValueError):
            continue
        digest = _hash_text(copy, other, algorithm)
        if (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino):
            in_cache = True
        elif digest == each.hash:
            original = original or _read(copy)
        elif digest is not None and digest == here:
            in_cache = True
    if original is None:
        original = _from_wheel(each, dist, cache)
    now = _read(place)
    lines = changed_lines(original, now) if original is not None and now is not None else None
    return replace(each, lines=lines, in_cache=in_cache)


def _hash_text(path: Path, status: os.stat_result, algorithm: str) -> str | None:
    """None for what is too large to be a text that someone edited: there the inode alone tells."""
    return hash_file(str(path), algorithm) if status.st_size <= MAX_TEXT else None


def _unpacked(cache: Path, distributions: Iterable[Distribution]) -> dict[str, list[Path]]:
    """Metadata directory to the unpacked wheels in the cache that hold it."""
    found: dict[str, list[Path]] = {}
    directories = [dist.directory for dist in distributions]
    try:
        archives = sorted(path for path in cache.glob("archive-v*/*") if path.is_dir())
    except OSError:
        return found
    for archive in archives:
        for directory in directories:
            if os.path.isfile(archive / directory / "WHEEL"):
                found.setdefault(directory, []).append(archive)
    return found


def _from_wheel(each: ChangedFile, dist: Distribution, cache: Path) -> bytes | None:
    """The original in a wheel that uv built and kept."""
    import zipfile
    import zlib

    for wheel in _wheels(cache, dist):
        try:
            with zipfile.ZipFile(wheel) as archive:
                if archive.getinfo(each.path).file_size > MAX_TEXT:
                    continue
                data = archive.read(each.path)
        except (OSError, KeyError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):
            continue  # another wheel may hold it
        if _digest(data, each.hash) == each.hash:
            return data
    return None


def _wheels(cache: Path, dist: Distribution) -> Iterator[Path]:
    for built in sorted(cache.glob("sdists-v*")):
        for root, _, files in os.walk(built):
            for name in files:
                stem, _, rest = name.partition("-")
                if name.endswith(".whl") and canonical(stem) == dist.name and rest.startswith(f"{dist.version}-"):
                    yield Path(root) / name


def _digest(data: bytes, wanted: str) -> str:
    import base64
    import hashlib

    algorithm = wanted.partition("=")[0]
    return f"{algorithm}={base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b'=').decode()}"


def _read(path: Path) -> bytes | None:
    """A text file of sane size; None where it is another thing."""
    try:
        data = read_head(path, MAX_TEXT + 1)
    except OSError:
        return None
    return None if b"\0" in data or len(data) > MAX_TEXT else data


def changed_lines(original: bytes, now: bytes) -> str | None:
    """The lines of ``now`` that are not those of ``original``, such as ``12-14, 30``; None where no line differs.

    Lines that were only deleted are told as ``after 7``.
    """
    old, new = original.splitlines(), now.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[len(old) - 1 - end] == new[len(new) - 1 - end]:
        end += 1
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if not old and not new:
        return None
    if max(len(old), len(new)) > MAX_COMPARED:
        return _range(start, start + len(new))
    from difflib import SequenceMatcher

    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return ", ".join(_range(start + first, start + last) for tag, _, _, first, last in blocks if tag != "equal")


def _range(first: int, last: int) -> str:
    """Lines ``first`` (from 0) up to ``last`` (excluded), as an editor counts them."""
    if first == last:
        return f"after {first}"
    return str(first + 1) if last - first == 1 else f"{first + 1}-{last}"
