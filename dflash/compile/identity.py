"""The compile id: which graphs a run needs, as a hash that is known before torch is imported.

In: the configuration. Out: hex sha256 over the settings that shape the graphs and over the source of the modules that
are traced. Two runs with one id look for the same cache entries; a snapshot carries the id of the run that made it.
Change the list when a setting or module starts to shape graphs: a wrong id costs a miss, never a wrong result (torch's
own keys decide about hits).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import dflash
from dflash.config import Config

TRACED = ("anchors.py", "attention.py", "batch.py", "drafter.py", "step.py", "compile/dense.py", "compile/policy.py")


def compile_id(config: Config, target_model: str, device: str) -> str:
    """The id; ``device`` is cpu or cuda."""
    shaping = {
        "data": [config.data.row_tokens, config.data.rows_per_step, config.data.anchors_per_row],
        "drafter": config.drafter.model_dump(),
        "target": [target_model, config.target.dtype, config.target.num_taps],
        "enabled": config.compile.enabled,
        "device": device,
    }
    digest = hashlib.sha256(json.dumps(shaping, sort_keys=True).encode())
    root = Path(dflash.__file__).parent
    for name in TRACED:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:32]
