"""What lies around an environment and is looked at only where a tier or the policy asks: code, libraries, toolkit, GPU.

In: the policy, its profile, the observation and the tier. Out: a frozen ``Surroundings``; a field is None where it was
not asked for. It calls the probes and decides only which of them are worth their time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from envguard.errors import PolicyError, ProbeError
from envguard.findings import Tier
from envguard.frozen import NOTHING, Frozen, replace
from envguard.observe import Observation
from envguard.policy import Policy, Profile
from envguard.recorded import Recorded, load_recorded

if TYPE_CHECKING:
    from envguard.probes.libraries import Exposed
    from envguard.probes.smoke import Smoke
    from envguard.probes.source import SourceCode
    from envguard.probes.toolkit import Toolkit

Fact = TypeVar("Fact")


class Libraries(Frozen):
    """CUDA libraries of the environment and of the system."""

    own: frozenset[str]
    exposed: tuple[Exposed, ...]


class Surroundings(Frozen):
    """The facts that only some judgements need."""

    ruled_variables: Mapping[str, str] = NOTHING
    """Every set variable that the profile's rules name, whether or not it is among the observed ones."""
    recorded: Recorded | None = None
    source: SourceCode | None = None
    libraries: Libraries | None = None
    toolkit: Toolkit | None = None
    was_toolkit_sought: bool = False
    smoke: Smoke | None = None
    problems: Mapping[str, str] = NOTHING
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
    seen = Surroundings(
        ruled_variables={name: value for name, value in os.environ.items() if _is_ruled(name, profile)},
        recorded=None if policy.recorded is None else load_recorded(root / policy.recorded),
    )
    return seen if tier == "fast" else _look_closer(seen, policy, profile, observation, tier)


def _look_closer(
    seen: Surroundings, policy: Policy, profile: Profile, observation: Observation, tier: Tier
) -> Surroundings:
    from envguard.probes.libraries import exposed_libraries, own_libraries
    from envguard.probes.smoke import smoke_test
    from envguard.probes.source import read_source
    from envguard.probes.toolkit import find_toolkit

    judged = observation.interpreter
    is_cuda = observation.torch is not None and observation.torch.cuda is not None
    is_gpu = tier == "gpu" and is_cuda and observation.driver is not None
    problems: dict[str, str] = {}

    def read(name: str, probe: Callable[[], Fact], *, when: bool) -> Fact | None:
        try:
            return probe() if when else None
        except ProbeError as error:
            problems[name] = str(error)
            return None

    def libraries() -> Libraries:
        return Libraries(own=own_libraries(judged.site_packages), exposed=exposed_libraries(os.environ))

    return replace(
        seen,
        source=read("source", lambda: read_source(policy.path.parent, policy.source), when=bool(policy.source)),
        libraries=read("libraries", libraries, when=is_cuda),
        toolkit=read("toolkit", lambda: find_toolkit(os.environ), when=is_cuda and profile.jit),
        was_toolkit_sought=is_cuda and profile.jit,
        smoke=read("smoke", lambda: smoke_test(judged.executable), when=is_gpu),
        problems=problems,
    )


def _is_ruled(name: str, profile: Profile) -> bool:
    required = {variable for variable, _ in profile.require_variables}
    return name in required or any(fnmatchcase(name, glob) for glob in profile.deny_variables)
