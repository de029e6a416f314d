"""What can be compared: each source of ``envguard diff`` read into one frozen ``Side``.

In: a path that a person named: an env.json, a uv.lock, a pylock.toml, a virtual environment or its interpreter, a run
directory or its run.json, a project directory. Out: a ``Side``, in which None means that this kind of source does not
know. Markers of a lock are evaluated for one given interpreter. It compares nothing (``diff.py`` does).
"""

from __future__ import annotations

import importlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from envguard.envjson import FrozenEnvironment, freeze_document, load_env, read_document
from envguard.errors import LockError, UsageError
from envguard.expect import expect
from envguard.frozen import Frozen, replace
from envguard.lock import load_lock
from envguard.observe import Observation, look_closer, observe
from envguard.pkg import canonical, marker_holds
from envguard.policy import DEFAULT_WATCHED
from envguard.probes.torch_build import TorchBuild

Kind = Literal["env.json", "uv.lock", "pylock.toml", "environment"]
ALLOWED = "an env.json, a uv.lock, a pylock.toml, a virtual environment, a run directory or a project"


class Item(Frozen):
    """One package of a side; a field that is None is not known."""

    version: str | None
    build: str | None = None
    """Fingerprint of the wheel."""
    origin: str | None = None
    """Where it came from, if not from an index."""
    is_optional: bool = False
    """Whether it may be missing: an extra or group of a lock that is not installed by default."""


class Side(Frozen):
    """One side of a comparison; a field that is None is not known by this kind of source."""

    name: str
    """As the person wrote it."""
    kind: Kind
    packages: Mapping[str, Item]
    python: str | None = None
    system: str | None = None
    knows_torch: bool = False
    torch: TorchBuild | None = None
    knows_driver: bool = False
    driver: str | None = None
    variables: Mapping[str, str] | None = None
    edited: frozenset[tuple[str, str]] | None = None
    """(distribution, path) of the files that are not what RECORD says."""


def find_source(path: Path) -> tuple[Kind, Path]:
    """Which kind of source ``path`` is, and the file (or environment) to read.

    Raises:
        UsageError: there is nothing, or nothing that can be compared.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is nothing; name {ALLOWED}")
    if path.is_dir():
        return _find_in_directory(path)
    if path.name == "run.json":
        return "env.json", path.parent / "env.json"
    if path.suffix == ".json":
        return "env.json", path
    if path.name.startswith("pylock.") and path.suffix == ".toml":
        return "pylock.toml", path
    if path.suffix == ".lock":
        return "uv.lock", path
    if not os.access(path, os.X_OK):
        raise UsageError(f"{path}: neither a file that can be compared nor an interpreter; name {ALLOWED}")
    return "environment", path


def _find_in_directory(path: Path) -> tuple[Kind, Path]:
    if (path / "pyvenv.cfg").is_file():
        return "environment", path
    if (path / "run.json").is_file():
        return "env.json", path / "env.json"
    if (path / "uv.lock").is_file():
        return "uv.lock", path / "uv.lock"
    if (path / "pylock.toml").is_file():
        return "pylock.toml", path / "pylock.toml"
    if (path / "env.json").is_file():
        return "env.json", path / "env.json"
    raise UsageError(f"{path}: holds no pyvenv.cfg, run.json, env.json, uv.lock or pylock.toml; name {ALLOWED}")


def read_side(name: Path, kind: Kind, source: Path, markers: Mapping[str, str]) -> Side:
    """Read ``source``; a lock's markers are evaluated in ``markers``.

    Raises:
        UsageError: it cannot be read, or is not what its name says.
    """
    match kind:
        case "env.json":
            return _from_env(str(name), load_env(source))
        case "uv.lock":
            return Side(name=str(name), kind=kind, packages=_read_uv_lock(source, markers))
        case "pylock.toml":
            return Side(name=str(name), kind=kind, packages=_read_pylock(source, markers))
        case "environment":
            return from_observation(str(name), look_closer(observe(source), watched=DEFAULT_WATCHED))


def from_observation(name: str, seen: Observation) -> Side:
    """The side of an observed environment: what its env.json would say, variables of this process included."""
    side = _from_env(name, read_document(freeze_document(seen)))
    return replace(
        side,
        kind="environment",
        knows_torch=seen.torch_problem is None,
        knows_driver=seen.driver_problem is None,
        edited=None if seen.contents is None else side.edited,
    )


def _from_env(name: str, env: FrozenEnvironment) -> Side:
    packages: dict[str, Item] = {}
    for dist in env.distributions:
        item = Item(version=dist.version, build=dist.fingerprint, origin=dist.origin)
        if twin := packages.get(dist.name):  # two metadata directories
            item = Item(version=f"{twin.version}, {dist.version}")
        packages[dist.name] = item
    return Side(
        name=name,
        kind="env.json",
        packages=packages,
        python=env.python,
        system=env.system,
        knows_torch=env.torch is not None or "torch" not in packages,
        torch=env.torch,
        knows_driver=True,
        driver=env.driver,
        variables=env.variables,
        edited=frozenset(env.edited),
    )


def _read_uv_lock(path: Path, markers: Mapping[str, str]) -> dict[str, Item]:
    try:
        expected = expect(load_lock(path), markers)
    except LockError as error:
        raise UsageError(str(error)) from error
    required = {name: Item(version=version) for name, version in expected.required.items()}
    return required | {name: Item(version=v, is_optional=True) for name, v in expected.optional.items()}


def _read_pylock(path: Path, markers: Mapping[str, str]) -> dict[str, Item]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}") from error
    _validate_pylock(path, document)
    try:
        groups = document.get("default-groups", [])
        return {
            canonical(entry["name"]): Item(version=entry.get("version"))
            for entry in document["packages"]
            if "marker" not in entry or marker_holds(entry["marker"], markers, groups=groups)
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no pylock.toml of PEP 751 ({type(error).__name__}: {error})") from error


def _validate_pylock(path: Path, document: dict[str, Any]) -> None:
    """Let ``packaging`` judge the document where it is new enough (26) to know the format."""
    try:
        module = importlib.import_module("packaging.pylock")
    except ImportError:
        return
    try:
        module.Pylock.from_dict(document)
    except module.PylockValidationError as error:
        raise UsageError(f"{path} is no pylock.toml of PEP 751: {error}") from error
