"""What is observed, as a document to keep: ``env.json``.

In: an ``Observation``. Out: a JSON-able dictionary with a deterministic ``env_id``, and ``load_env`` to read it back.
``facts`` are hashed into the id and hold no time, host name or directory: Python, distributions with the fingerprint of
the wheel that each came from, torch build, driver, relevant variables. Not hashed are ``place`` (where it was, who
installed it, GPUs), ``edited`` (files that differ from their RECORD: how many are seen depends on the tier) and
``code`` (the project's own sources, which change with every commit while the environment does not).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envguard.atomic import sha256_bytes
from envguard.errors import UsageError
from envguard.frozen import Frozen, as_dict
from envguard.observe import Observation
from envguard.probes.distributions import Origin
from envguard.probes.torch_build import TorchBuild

if TYPE_CHECKING:
    from envguard.probes.contents import ChangedFile

SCHEMA = 1

PLACE_VARIABLES = (
    *("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH"),
    "CUDA_VISIBLE_DEVICES",
)
"""Variables that name a directory or a device of this machine: recorded, not hashed. So is what ends in _DIR."""


class FrozenDistribution(Frozen):
    """One distribution of an ``env.json``."""

    name: str
    version: str
    fingerprint: str | None
    """Fingerprint of its wheel; None where RECORD could not tell."""
    origin: str | None
    """``editable``, ``directory`` or a URL with its commit; None for an index."""


class FrozenEnvironment(Frozen):
    """One ``env.json``, read back."""

    env_id: str
    python: str
    implementation: str
    system: str
    distributions: tuple[FrozenDistribution, ...]
    torch: TorchBuild | None
    driver: str | None
    variables: Mapping[str, str]
    edited: tuple[tuple[str, str], ...]
    """(distribution, path) of every file that differed from its RECORD."""


def freeze_document(observation: Observation, code: dict[str, Any] | None = None) -> dict[str, Any]:
    """The document for ``observation``; equal facts give an equal ``env_id``. ``code`` is that of ``owncode.py``."""
    facts = {
        "python": {
            "version": observation.interpreter.version,
            "implementation": observation.interpreter.implementation,
        },
        "system": observation.system,
        "distributions": [
            {
                "name": dist.name,
                "version": dist.version,
                "fingerprint": dist.fingerprint,
                "origin": describe_origin(dist.origin),
                "problem": dist.problem,
            }
            for dist in observation.distributions
        ],
        "torch": as_dict(observation.torch) if observation.torch else None,
        "driver": observation.driver,
        "variables": {name: value for name, value in observation.variables if not _is_place(name)},
    }
    installers: dict[str, list[str]] = {}
    for dist in observation.distributions:
        installers.setdefault(dist.installer or "unknown", []).append(dist.name)
    place = {
        "prefix": str(observation.interpreter.prefix),
        "executable": str(observation.interpreter.executable),
        "site_packages": str(observation.interpreter.site_packages),
        "gpus": None if observation.gpus is None else [as_dict(gpu) for gpu in observation.gpus],
        "installers": dict(sorted(installers.items())),
        "origins": {dist.name: _without_login(dist.origin.url) for dist in observation.distributions if dist.origin},
        "variables": {name: value for name, value in observation.variables if _is_place(name)},
    }
    changed = observation.contents.changed if observation.contents else ()
    edited = [_describe_change(each) for each in changed]
    return {
        "schema": SCHEMA,
        "env_id": _identify(facts),
        "facts": facts,
        "place": place,
        "edited": edited,
        "code": code,
    }


def load_env(path: Path) -> FrozenEnvironment:
    """Read an ``env.json``.

    Raises:
        UsageError: it cannot be read, has another schema, or its facts do not give its ``env_id``.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name an env.json") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON ({error}): write it anew with envguard freeze") from error
    if not isinstance(document, dict) or not isinstance(document.get("facts"), dict):
        raise UsageError(f"{path} is no env.json: write one with envguard freeze")
    if (schema := document.get("schema")) != SCHEMA:
        raise UsageError(f"{path} has schema {schema!r}, this envguard reads {SCHEMA}: write it anew")
    if document.get("env_id") != _identify(document["facts"]):
        raise UsageError(f"{path} was changed by hand: its facts do not give its env_id; write it anew")
    try:
        return read_document(document)
    except (KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} is not as this envguard writes it ({what}): write it anew") from error


def describe_origin(origin: Origin | None) -> str | None:
    """What ``direct_url.json`` says without a directory of this machine and without a login."""
    if origin is None:
        return None
    if origin.url.startswith("file:") or "://" not in origin.url:
        return "editable" if origin.editable else "directory"
    url = _without_login(origin.url)
    return url if origin.commit is None else f"{url}@{origin.commit}"


def _without_login(url: str) -> str:
    """``url`` without user and password, which must not end up in a document that is passed on."""
    return re.sub(r"^([^/@]*://)[^/]*@", r"\1", url)


def _describe_change(change: ChangedFile) -> dict[str, str]:
    return {"distribution": change.distribution, "path": change.path, "kind": change.kind}


def read_document(document: dict[str, Any]) -> FrozenEnvironment:
    """The document of ``freeze_document`` as a value.

    Raises:
        KeyError, TypeError: it is not as ``freeze_document`` writes it.
    """
    facts = document["facts"]
    torch = facts["torch"]
    return FrozenEnvironment(
        env_id=_text(document["env_id"]),
        python=_text(facts["python"]["version"]),
        implementation=_text(facts["python"]["implementation"]),
        system=_text(facts["system"]),
        distributions=tuple(
            FrozenDistribution(
                name=_text(each["name"]),
                version=_text(each["version"]),
                fingerprint=_optional(each["fingerprint"]),
                origin=_optional(each["origin"]),
            )
            for each in facts["distributions"]
        ),
        torch=None if torch is None else _read_torch(torch),
        driver=_optional(facts["driver"]),
        variables={_text(name): _text(value) for name, value in facts["variables"].items()},
        edited=tuple((_text(each["distribution"]), _text(each["path"])) for each in document["edited"]),
    )


def _read_torch(torch: dict[str, Any]) -> TorchBuild:
    return TorchBuild(
        version=_text(torch["version"]),
        cuda=_optional(torch["cuda"]),
        hip=_optional(torch["hip"]),
        git_version=_optional(torch["git_version"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r} where a string belongs")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _is_place(name: str) -> bool:
    return name in PLACE_VARIABLES or name.endswith("_DIR")


def _identify(facts: dict[str, Any]) -> str:
    text = json.dumps({"schema": SCHEMA, **facts}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256_bytes(text.encode())
