"""Which programs a shell would start: launchers found on PATH.

In: environment variables and the judged environment's prefix. Out: (name, path) pairs. Nothing is executed. Where
envguard runs in an environment of its own, the directory that holds it is passed over: it is on PATH for envguard's
sake, and no run of the judged environment will have it there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from envguard.probes.programs import find_command

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Programs that start workers with the Python that they themselves belong to."""


def find_launchers(environ: Mapping[str, str], prefix: Path) -> tuple[tuple[str, str], ...]:
    """Each of ``LAUNCHERS`` that PATH finds, with its place."""
    own = os.path.realpath(Path(sys.prefix) / "bin")
    is_elsewhere = own != os.path.realpath(prefix / "bin")
    directories = [
        each
        for each in environ.get("PATH", os.defpath).split(os.pathsep)
        if not (is_elsewhere and os.path.realpath(each) == own)
    ]
    found = ((name, find_command(name, directories)) for name in LAUNCHERS)
    return tuple((name, place) for name, place in found if place is not None)
