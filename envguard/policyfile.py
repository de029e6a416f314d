"""A policy's text: the file and those that it extends, merged into one document that knows where each key stands.

In: the path of a TOML file. Out: a ``Document``. A table merges with that of the extended file key by key; a list or a
scalar of the extending file wins, and so does the later one of several extended files. It knows the keys ``extends``
and ``schema`` and no others: what the rest means is ``policy.py``'s business.
"""

from __future__ import annotations

import codecs
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envguard.errors import PolicyError
from envguard.frozen import Frozen
from envguard.probes.files import read_head
from envguard.strict import Trouble
from envguard.tomllines import Key, dotted, locate

SCHEMA = 1
MAX_BYTES = 1 << 20


class Place(Frozen):
    """A line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Document(Frozen):
    """A merged policy."""

    path: Path
    """The file that was asked for."""
    table: dict[str, Any]
    places: Mapping[Key, Place]
    """Where each key stands; one that came from an extended profile is also found under the extending one."""

    def place(self, key: Key) -> Place:
        """Where ``key`` stands, or else the nearest table that holds it."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.places:
                return self.places[key[:length]]
        return Place(path=self.path, line=1)


def read_document(path: Path, troubles: list[Trouble]) -> Document:
    """Read ``path`` and everything that it extends; what is wrong with a profile's ``extends`` goes into ``troubles``.

    Raises:
        PolicyError: a file is missing, unreadable, no TOML, of another schema, or extends itself.
    """
    return _extend_profiles(_read(path, ()), troubles)


def _read(path: Path, chain: tuple[Path, ...]) -> Document:
    told = " -> ".join(str(each) for each in (*chain, path))
    via = f" (extended along {told})" if chain else ""
    try:
        content = read_head(path, MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}{via}") from error
    if len(content) > MAX_BYTES:
        raise PolicyError(f"{path} is larger than {MAX_BYTES} bytes, so it is no policy{via}")
    if content.startswith(codecs.BOM_UTF8):
        raise PolicyError(f"{path} begins with a byte order mark, which TOML forbids: save it without one{via}")
    if path.resolve() in [each.resolve() for each in chain]:
        raise PolicyError(f"{chain[-1]}: extends makes a circle: {told}")
    try:
        text = content.decode("utf-8")
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path} is no valid TOML: {error}{via}") from error
    except RecursionError as error:
        raise PolicyError(f"{path} is nested too deeply to be a policy{via}") from error
    places = {key: Place(path=path, line=line) for key, line in locate(text).items()}
    own = Document(path=path, table=table, places=places)
    if (schema := table.get("schema")) != SCHEMA or isinstance(schema, bool):
        where = own.place(("schema",))
        raise PolicyError(f"{where}: schema: got {schema!r}, this envguard reads schema = {SCHEMA}{via}")
    merged = Document(path=path, table={}, places={})
    for parent in _parents(own):
        merged = _merge(merged, _read(path.parent / parent, (*chain, path)))
    return _merge(merged, own)


def _parents(own: Document) -> list[str]:
    value = own.table.get("extends", [])
    parents = [value] if isinstance(value, str) else value
    if not isinstance(parents, list) or not all(map(_is_path, parents)):
        where = own.place(("extends",))
        raise PolicyError(f"{where}: extends: got {value!r}, allowed is a path or a list of paths")
    return parents


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _merge(base: Document, own: Document) -> Document:
    places = dict(base.places)
    table = _merge_tables(base.table, own.table, (), places)
    return Document(path=own.path, table=table, places={**places, **own.places})


def _merge_tables(
    base: Mapping[str, Any], own: Mapping[str, Any], key: Key, places: dict[Key, Place]
) -> dict[str, Any]:
    """Both tables in one; what ``own`` replaces loses its place."""
    merged = dict(base)
    for name, value in own.items():
        old = base.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[name] = _merge_tables(old, value, (*key, name), places)
            continue
        merged[name] = value
        for gone in list(_below(places, (*key, name))):
            del places[gone]
    return merged


def _below(places: Mapping[Key, Place], key: Key) -> Iterator[Key]:
    return (each for each in places if each[: len(key)] == key)


def _extend_profiles(document: Document, troubles: list[Trouble]) -> Document:
    """The document with each profile filled with what the one that it extends says."""
    profiles = document.table.get("profiles")
    if not isinstance(profiles, dict):
        return document  # the reader of the policy says so
    places = dict(document.places)
    whole = {name: _whole_profile(name, (), profiles, places, troubles) for name in profiles}
    return Document(path=document.path, table={**document.table, "profiles": whole}, places=places)


def _whole_profile(
    name: str, chain: tuple[str, ...], profiles: Mapping[str, Any], places: dict[Key, Place], troubles: list[Trouble]
) -> Any:
    """Profile ``name`` with all that it inherits; each problem is noted where the walk began (an empty ``chain``)."""
    own = profiles[name]
    if not isinstance(own, dict) or "extends" not in own:
        return own
    base = own["extends"]
    rest = {each: value for each, value in own.items() if each != "extends"}
    walked = (*chain, name)
    if not isinstance(base, str) or base not in profiles:
        import difflib

        near = difflib.get_close_matches(str(base), list(profiles), n=1, cutoff=0.0)[0]
        if not chain:
            text = f"got {base!r}, allowed is the name of another profile, nearest: {near}"
            troubles.append(Trouble(key=("profiles", name, "extends"), text=text))
        return rest
    if base in walked:
        if base == walked[0]:
            text = f"makes a circle: {' -> '.join((*walked, base))}"
            troubles.append(Trouble(key=("profiles", walked[0], "extends"), text=text))
        return rest
    whole = _whole_profile(base, walked, profiles, places, troubles)
    if not isinstance(whole, dict):
        return rest
    inherited: dict[Key, Place] = {
        ("profiles", name, *key[2:]): place for key, place in places.items() if key[:2] == ("profiles", base)
    }
    merged = _merge_tables(whole, rest, ("profiles", name), inherited)
    for key, place in inherited.items():
        places.setdefault(key, place)
    return merged


def describe(document: Document, trouble: Trouble) -> str:
    """One line for a person."""
    told = f"{dotted(trouble.key) or 'the document'}: {trouble.text}"
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in told)
    return f"{document.place(trouble.key)}: {line}"
