"""Every distribution installed in one site-packages, found by listing it.

In: a site-packages directory. Out: one ``Distribution`` for each metadata directory, and the other top-level names.
``importlib.metadata`` is not used: it hides a second dist-info of the same name and trips over truncated files. What
cannot be read is a value (``problem``), never an exception. File contents are not compared with RECORD here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from envguard.errors import ProbeError
from envguard.frozen import Frozen
from envguard.pkg import canonical
from envguard.probes.files import read_head

MAX_HEADER_BYTES = 64 * 1024
"""Name and Version stand at the top of METADATA; a long description after them is not read."""


class Origin(Frozen):
    """What ``direct_url.json`` says (PEP 610)."""

    url: str
    editable: bool
    commit: str | None
    """The commit of a version control system that was checked out."""


class Distribution(Frozen):
    """One ``*.dist-info`` (or ``*.egg-info``) entry."""

    name: str
    """Normalised, such as ``nvidia-cublas``."""
    version: str
    """As METADATA says; from the directory's name where METADATA is damaged; "" where neither tells."""
    directory: str
    """The entry's own name in site-packages."""
    requires: tuple[str, ...]
    """Its ``Requires-Dist`` lines."""
    origin: Origin | None
    """Where it was installed from, if not from an index (``direct_url.json``)."""
    scripts: tuple[str, ...]
    """Console scripts that it declares."""
    installer: str | None
    """``uv``, ``pip``, …; None where the file is absent."""
    has_record: bool
    """Whether RECORD is there: without it neither uv nor pip can remove the distribution."""
    problem: str | None
    """What is damaged in the entry, None where nothing is."""
    fingerprint: str | None = None
    """Identity of the content that was installed, the same for a wheel, uv and pip (see ``records.py``); None where
    RECORD cannot tell, and for an editable one, whose content lies in its project."""


class Installed(Frozen):
    """The content of one site-packages at its top level."""

    distributions: tuple[Distribution, ...]
    """Sorted by name, then directory."""
    directories: tuple[str, ...]
    """Sorted names of the importable directories."""


def read_installed(site_packages: Path) -> Installed:
    """List ``site_packages``.

    Raises:
        ProbeError: the directory itself is missing or cannot be listed.
    """
    try:
        with os.scandir(site_packages) as entries:
            listed = [(entry.name, _is_dir(entry)) for entry in entries]
    except OSError as error:
        raise ProbeError(f"{site_packages} cannot be listed ({error.strerror}): run uv sync --locked") from error
    found = [
        _read_distribution(os.path.join(site_packages, name), name, is_dir=is_dir)
        for name, is_dir in listed
        if name.endswith((".dist-info", ".egg-info"))
    ]
    return Installed(
        distributions=tuple(sorted(found, key=lambda each: (each.name, each.directory))),
        directories=tuple(sorted(name for name, is_dir in listed if is_dir and name.isidentifier())),
    )


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round in a circle
        return False


def _read_distribution(path: str, directory: str, *, is_dir: bool) -> Distribution:
    stem = directory.rpartition(".")[0]
    dir_name, _, rest = stem.partition("-")
    dir_version = rest.partition("-py")[0]  # egg-info: name-version-py3.11
    is_egg = directory.endswith(".egg-info")
    present = _list(path) if is_dir else frozenset()
    problems: list[str] = []
    metadata = "PKG-INFO" if is_egg else "METADATA"
    headers, requires = _read_headers(f"{path}/{metadata}" if is_dir else path, problems)
    name, version = headers.get("name", ""), headers.get("version", "")
    if not name or not version:
        problems = problems or [f"{metadata} is truncated: it has no {'Version' if name else 'Name'}"]
    if dir_name.startswith("~"):
        problems = ["left over from an interrupted pip"]
    origin = parse_origin(_read_optional(path, "direct_url.json", present), problems)
    has_record = "RECORD" in present and os.path.isfile(f"{path}/RECORD")
    if not is_egg and not has_record:
        problems.append("RECORD is missing, so nothing can uninstall or verify it")
    return Distribution(
        name=canonical(name or dir_name),
        version=version or dir_version,
        directory=directory,
        requires=requires,
        origin=origin,
        scripts=parse_scripts(_read_optional(path, "entry_points.txt", present)),
        installer=_read_optional(path, "INSTALLER", present).strip() or None,
        has_record=has_record,
        problem="; ".join(problems) or None,
    )


def _list(path: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(path))
    except OSError:  # METADATA cannot be read then, which is told
        return frozenset()


def _read_headers(path: str, problems: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    try:
        head = read_head(path, MAX_HEADER_BYTES).partition(b"\n\n")[0].decode(errors="replace")
    except OSError as error:
        problems.append(f"{os.path.basename(path)} cannot be read ({error.strerror})")
        return {}, ()
    headers: dict[str, str] = {}
    requires: list[str] = []
    for line in head.splitlines():
        if line.startswith(("Name:", "Version:", "Requires-Dist:")):
            key, _, value = line.partition(":")
            if key == "Requires-Dist":
                requires.append(value.strip())
            else:
                headers.setdefault(key.lower(), value.strip())
        elif not line or line.isspace():
            break  # the description follows
    return headers, tuple(requires)


def parse_origin(text: str, problems: list[str]) -> Origin | None:
    """The content of a ``direct_url.json``; None where there is none or it is damaged, which is noted."""
    if not text:
        return None
    try:
        document = json.loads(text)
        vcs, directory = document.get("vcs_info", {}), document.get("dir_info", {})
        commit = vcs.get("commit_id")
        return Origin(
            url=str(document["url"]),
            editable=directory.get("editable") is True,
            commit=None if commit is None else str(commit),
        )
    except (ValueError, KeyError, AttributeError, RecursionError):
        problems.append("direct_url.json is damaged")
        return None


def parse_scripts(text: str) -> tuple[str, ...]:
    """The names in the ``console_scripts`` section of an ``entry_points.txt``."""
    section = ""
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip().strip("[]")
        elif section == "console_scripts" and "=" in line:
            names.append(line.partition("=")[0].strip())
    return tuple(names)


def _read_optional(path: str, name: str, present: frozenset[str]) -> str:
    """The head of a file that the packaging rules do not require; "" where it is absent or unreadable."""
    if name not in present:
        return ""
    try:
        return read_head(f"{path}/{name}", MAX_HEADER_BYTES).decode(errors="replace")
    except OSError:
        return ""
