"""What ``import X`` would give in the judged interpreter, without importing anything.

In: an interpreter, the directories that its ``.pth`` files add, and the modules to look for. Out: where each comes
from. The search is that of Python's own path finder, with the judged interpreter's path and file suffixes instead of
ours. Import hooks that a package installs at run time are not followed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)

from envguard.frozen import Frozen
from envguard.probes.interpreter import Interpreter


class ImportOrigin(Frozen):
    """Where one watched import comes from."""

    distribution: str
    module: str
    own: str | None
    """The file that the distribution owns under this name; None where the distribution is not installed."""
    origin: str | None
    """The file that the import executes; None where there is none (a namespace package, or nothing at all)."""
    portions: tuple[str, ...]
    """The directories of a namespace package: without ``__init__``, Python imports them as an empty shell."""


def search_path(interpreter: Interpreter, added: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """``sys.path`` of a program that the judged interpreter runs in the current directory.

    The running interpreter's own path is what it is; where our own console script put its directory first, the current
    directory stands there instead, as for ``python -m`` and the workers that torch starts.
    """
    if interpreter.prefix == _running_prefix():
        first, *rest = sys.path or [""]
        if first == os.path.dirname(sys.executable):
            first = "" if not sys.flags.safe_path else rest[0] if rest else ""
        return _clean([first, *rest])
    here = [] if environ.get("PYTHONSAFEPATH") else [""]
    given = [each or "." for each in environ.get("PYTHONPATH", "").split(os.pathsep) if environ.get("PYTHONPATH")]
    user = [str(interpreter.user_site)] if interpreter.user_site else []
    return _clean([*here, *given, *user, str(interpreter.site_packages), *added])


def _running_prefix() -> object:
    from pathlib import Path

    return Path(sys.prefix)


def _clean(path: Sequence[str]) -> tuple[str, ...]:
    places: list[str] = []
    for each in path:
        try:
            places.append(os.path.abspath(each or "."))
        except OSError:  # the current directory has been deleted
            continue
    return tuple(dict.fromkeys(places))


def find_imports(
    modules: Sequence[tuple[str, str, str | None]], path: Sequence[str], version: str
) -> tuple[ImportOrigin, ...]:
    """Look for each (distribution, module, own file) along ``path``; ``version`` is that of the judged interpreter."""
    finders = [FileFinder(place, *_loaders(version)) for place in path if os.path.isdir(place)]
    found = []
    for distribution, module, own in modules:
        origin, portions = _find(module, finders)
        found.append(ImportOrigin(distribution=distribution, module=module, own=own, origin=origin, portions=portions))
    return tuple(found)


def _loaders(version: str) -> list[tuple[type, list[str]]]:
    major, minor = version.split(".")[:2]
    tag = f".cpython-{major}{minor}"
    native = [f"{tag}-{getattr(sys.implementation, '_multiarch', '')}.so", f"{tag}-darwin.so", ".abi3.so", ".so"]
    return [
        (ExtensionFileLoader, native),
        (SourceFileLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    ]


def _find(module: str, finders: Sequence[FileFinder]) -> tuple[str | None, tuple[str, ...]]:
    portions: list[str] = []
    for finder in finders:
        spec = finder.find_spec(module)
        if spec is None:
            continue
        if spec.loader is not None:
            return spec.origin, ()
        portions += spec.submodule_search_locations or []
    return None, tuple(portions)
