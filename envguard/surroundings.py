"""What lies around an environment and is looked at only where a tier or the policy asks: code, libraries, toolkit, GPU.

In: the policy, its profile, the observation and the tier. Out: a frozen ``Surroundings``; a field is None where it was
not asked for. It calls the probes and decides only which of them are worth their time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

from envguard.errors import PolicyError, ProbeError
from envguard.findings import INCLUDED, Tier
from envguard.observe import Observation
from envguard.policy import Policy, Profile
from envguard.probes.libraries import Exposed, exposed_libraries, own_libraries
from envguard.probes.smoke import Smoke, smoke_test
from envguard.probes.source import SourceCode, read_source
from envguard.probes.toolkit import Toolkit, find_toolkit
from envguard.recorded import Recorded, load_recorded

Fact = TypeVar("Fact")


@dataclass(frozen=True, kw_only=True, slots=True)
class Libraries:
    """CUDA libraries of the environment and of the system."""

    own: frozenset[str]
    exposed: tuple[Exposed, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The facts that only some judgements need."""

    ruled_variables: Mapping[str, str] = field(default_factory=dict)
    """Every set variable that the profile's rules name, whether or not it is among the observed ones."""
    recorded: Recorded | None = None
    source: SourceCode | None = None
    libraries: Libraries | None = None
    toolkit: Toolkit | None = None
    was_toolkit_sought: bool = False
    smoke: Smoke | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    """Name of a field → why it could not be read."""

    def demand(self, name: str) -> None:
        """Raise what kept ``name`` from being read.

        Raises:
            ProbeError: it could not be read.
        """
        if name in self.problems:
            raise ProbeError(self.problems[name])


def look_around(policy: Policy, profile: Profile, observation: Observation, tier: Tier) -> Surroundings:
    """Read what ``tier`` and ``profile`` ask for.

    Raises:
        PolicyError: the policy names a source or a record that is not there.
    """
    root = policy.path.parent
    for entry in policy.source:
        if not (root / entry).exists():
            raise PolicyError(f"{policy.where('source')}: source: got {entry!r}, allowed is an existing path")
    recorded = None if policy.recorded is None else load_recorded(root / policy.recorded)
    is_cuda = observation.torch is not None and observation.torch.cuda is not None
    problems: dict[str, str] = {}

    def read(name: str, is_wanted: bool, probe: Callable[[], Fact]) -> Fact | None:
        if not is_wanted:
            return None
        try:
            return probe()
        except ProbeError as error:
            problems[name] = str(error)
            return None

    judged = observation.interpreter
    is_standard = "standard" in INCLUDED[tier]
    is_gpu = "gpu" in INCLUDED[tier] and is_cuda and observation.driver is not None
    return Surroundings(
        ruled_variables={name: value for name, value in os.environ.items() if _is_ruled(name, profile)},
        recorded=recorded,
        source=read("source", is_standard and bool(policy.source), lambda: read_source(root, policy.source)),
        libraries=read(
            "libraries",
            is_standard and is_cuda,
            lambda: Libraries(own=own_libraries(judged.site_packages), exposed=exposed_libraries(os.environ)),
        ),
        toolkit=read("toolkit", is_standard and is_cuda and profile.jit, lambda: find_toolkit(os.environ)),
        was_toolkit_sought=is_standard and is_cuda and profile.jit,
        smoke=read("smoke", is_gpu, lambda: smoke_test(judged.executable)),
        problems=problems,
    )


def _is_ruled(name: str, profile: Profile) -> bool:
    required = {variable for variable, _ in profile.require_variables}
    return name in required or any(fnmatchcase(name, glob) for glob in profile.deny_variables)
