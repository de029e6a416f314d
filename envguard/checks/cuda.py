"""CUD: the NVIDIA driver and the CUDA libraries against the installed build of torch.

In: an ``Inspection``. Out: problems. No GPU is touched and no library is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from envguard.errors import ProbeError
from envguard.findings import Check, Problem, Repair, Skip
from envguard.inspection import Inspection
from envguard.pkg import satisfies

MINIMAL_DRIVER = {"13": ">=580", "12": ">=525.60.13"}
"""By CUDA major release: the driver branch that NVIDIA's minor-version compatibility starts at on Linux."""


_SUFFIX = re.compile(r"-cu(?:da)?(\d\d)x?(?:-|$)")
"""In names such as nvidia-cudnn-cu13, cupy-cuda12x, jax-cuda12-plugin."""
_UNSUFFIXED = re.compile(r"nvidia-(cuda-\w+|cublas|nvjitlink|nvtx)|cuda-(toolkit|bindings|python)")
"""Names whose own major version is that of the CUDA release. (libcufft is 12 in CUDA 13: it is not one of them.)"""


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


def _stacks(case: Inspection) -> Iterable[Problem]:
    stacks: dict[str, list[str]] = {}
    for dist in case.observation.distributions:
        if major := _cuda_major(dist.name, dist.version):
            stacks.setdefault(major, []).append(f"{dist.name} {dist.version}")
    for directory in case.observation.cuda_directories:
        stacks.setdefault(directory.removeprefix("cu"), []).append(f"nvidia/{directory}/")
    torch = case.observation.torch
    if torch is not None and torch.cuda is not None:
        stacks.setdefault(torch.cuda.partition(".")[0], []).append(f"torch {torch.version}")
    if len(stacks) < 2:
        return
    own = torch.cuda.partition(".")[0] if torch is not None and torch.cuda is not None else max(stacks)
    for major in sorted(stacks.keys() - {own}):
        yield Problem(
            subject=f"cu{major}",
            message=f"the libraries of two CUDA releases are installed: {_some(stacks[major])} of CUDA {major} beside "
            f"{_some(stacks[own])} of CUDA {own}",
            expected=f"CUDA {own} only",
            observed=", ".join(stacks[major]),
            repair=Repair(sync=True),
        )


def _cuda_major(name: str, version: str) -> str | None:
    if suffix := _SUFFIX.search(name):
        return suffix[1]
    major = version.partition(".")[0]
    return major if _UNSUFFIXED.fullmatch(name) and major.isdigit() else None


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _links(case: Inspection) -> Iterable[Problem] | Skip:
    links = case.observation.cuda_links
    if links is None:
        return Skip(reason="native modules were not read: this is the fast tier")
    of_torch = _majors(links.torch)
    problems: dict[tuple[str, str], Problem] = {}
    for path, needs in links.modules:
        for library, major in _majors(needs).items():
            wanted = of_torch.get(library)
            soname = f"{library}.so.{major}"
            if wanted is not None and wanted != major:
                said = f"needs {soname}, and torch uses {library}.so.{wanted}"
            elif wanted is None and soname not in links.provided:
                said = f"needs {soname}, which nothing in the environment provides"
            else:
                continue
            head = path.partition("/")[0]
            problems.setdefault(
                (head, soname),
                Problem(
                    subject=head,
                    message=f"{path} {said}",
                    expected=f"{library}.so.{wanted}" if wanted else None,
                    observed=soname,
                ),
            )
    return problems.values()


def _majors(sonames: Iterable[str]) -> Mapping[str, str]:
    return {library: major for library, _, major in (name.partition(".so.") for name in sonames)}


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="CUD001",
        summary="the libraries of one CUDA release are installed, those that torch was built for",
        why="Two releases share directories and sonames; which one a process loads depends on the order of imports. "
        "pip and uv pip install leave the old stack behind when they move torch to another release.",
        fix="make the environment anew: uv sync --locked removes what the lock does not name",
        run=_stacks,
    ),
    Check(
        id="CUD002",
        summary="every native module finds the CUDA libraries that it was linked with, and they are those of torch",
        why="A module built for another CUDA release, or for another torch, fails at its import with an undefined "
        "symbol or a missing library, or loads a second runtime beside torch's.",
        fix="rebuild or reinstall it for the installed torch, or remove it",
        run=_links,
        tier="standard",
    ),
    Check(
        id="CUD003",
        summary="the NVIDIA driver is new enough for the CUDA release of the installed torch",
        why="An older driver makes torch.cuda.is_available() false, or fails at the first kernel.",
        fix="update the driver, or use a profile that is built for an older CUDA release",
        run=_driver,
    ),
)
