"""What is observed, as a document to keep: ``env.json``.

In: an ``Observation``. Out: a JSON-able dictionary with a deterministic ``env_id``. ``facts`` are hashed into the id
and hold no time, host name or directory of this machine; ``place`` says where it was, GPUs included, and is not
hashed. Two environments with one id have the same Python, distributions, torch build, driver and relevant variables;
that no file was edited after installation is not part of it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from envguard.atomic import sha256_bytes
from envguard.observe import Observation

SCHEMA = 1

PLACE_VARIABLES = (
    *("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH"),
    "CUDA_VISIBLE_DEVICES",
)
"""Variables that name a directory or a device of this machine: recorded, not hashed. So is what ends in _DIR."""


def freeze_document(observation: Observation) -> dict[str, Any]:
    """The document for ``observation``; equal facts give an equal ``env_id``."""
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
                "problem": dist.problem,
            }
            for dist in observation.distributions
        ],
        "torch": dataclasses.asdict(observation.torch) if observation.torch else None,
        "driver": observation.driver,
        "variables": {name: value for name, value in observation.variables if not _is_place(name)},
    }
    place = {
        "prefix": str(observation.interpreter.prefix),
        "executable": str(observation.interpreter.executable),
        "site_packages": str(observation.interpreter.site_packages),
        "gpus": None if observation.gpus is None else [dataclasses.asdict(gpu) for gpu in observation.gpus],
        "installers": sorted({dist.installer or "unknown" for dist in observation.distributions}),
        "variables": {name: value for name, value in observation.variables if _is_place(name)},
    }
    return {"schema": SCHEMA, "env_id": _identify(facts), "facts": facts, "place": place}


def _is_place(name: str) -> bool:
    return name in PLACE_VARIABLES or name.endswith("_DIR")


def _identify(facts: dict[str, Any]) -> str:
    text = json.dumps({"schema": SCHEMA, **facts}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256_bytes(text.encode())
