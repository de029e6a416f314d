"""CUD: the NVIDIA driver against the installed build. In: an ``Inspection``. Out: problems. No GPU is touched."""

from __future__ import annotations

from collections.abc import Iterable

from envguard.errors import ProbeError
from envguard.findings import Check, Problem, Skip
from envguard.inspection import Inspection
from envguard.pkg import satisfies

MINIMAL_DRIVER = {"13": ">=580", "12": ">=525.60.13"}
"""By CUDA major release: the driver branch that NVIDIA's minor-version compatibility starts at on Linux."""


def _driver(case: Inspection) -> Iterable[Problem] | Skip:
    driver, torch = case.observation.driver, case.observation.torch
    if case.observation.driver_problem is not None:
        raise ProbeError(case.observation.driver_problem)
    if driver is None:
        return Skip(reason="this machine has no NVIDIA driver")
    if torch is None or torch.cuda is None:
        return Skip(reason="the installed torch is not built for CUDA")
    wanted = case.profile.driver or MINIMAL_DRIVER.get(torch.cuda.partition(".")[0])
    if wanted is None:
        return Skip(reason=f"no minimal driver is known for CUDA {torch.cuda}: set driver in the profile")
    if satisfies(driver, wanted):
        return ()
    problem = Problem(
        subject="driver",
        message=f"NVIDIA driver {driver} is too old for torch {torch.version} (CUDA {torch.cuda}): it needs {wanted}",
        expected=wanted,
        observed=driver,
    )
    return (problem,)


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="CUD003",
        summary="the NVIDIA driver is new enough for the CUDA release of the installed torch",
        why="An older driver makes torch.cuda.is_available() false, or fails at the first kernel.",
        fix="update the driver, or use a profile that is built for an older CUDA release",
        run=_driver,
    ),
)
