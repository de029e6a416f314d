"""RUN: variables that change results. In: an ``Inspection``. Out: problems.

The profile's own rules (``env.deny``, ``env.require``, ``env.allow``) are kept here, for whatever variable they name;
ENV004 and CUD004 are about variables that change what is imported or loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from envguard.findings import Check, Problem
from envguard.inspection import Inspection

NUMERIC = (
    r"NVIDIA_TF32_OVERRIDE|CUBLAS_WORKSPACE_CONFIG|ATEN_CPU_CAPABILITY|MKL_CBWR|MKL_ENABLE_INSTRUCTIONS|"
    r"(TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|FLA)_\w+"
)
HARMLESS = (
    r"\w+_(DIR|HOME|PATH|LOGS?|LOG_LEVEL|ALLOC_CONF|THREADS)|TORCH_(SHOW_CPP_STACKTRACES|TRACE|COMPILE_DEBUG|NCCL_\w+|"
    r"DISTRIBUTED_DEBUG|CUDA_ARCH_LIST|FORCE_NO_WEIGHTS_ONLY_LOAD)|TORCHINDUCTOR_(FORCE_DISABLE_CACHES|FX_GRAPH_CACHE|"
    r"AUTOGRAD_CACHE|COMPILE_THREADS|WORKER_START)|TRITON_(PRINT_AUTOTUNING|CACHE_\w+)"
)
"""Of those: where things lie, what is logged, how memory is kept, whether a cache is used. They change no number."""


def _variables(case: Inspection) -> Iterable[Problem]:
    yield from _denied(case)
    yield from _required(case)
    yield from _numeric(case)


def _denied(case: Inspection) -> Iterator[Problem]:
    observed = dict(case.observation.variables)
    for name in sorted(case.around.ruled_variables):
        glob = next((glob for glob in case.profile.deny_variables if fnmatchcase(name, glob)), None)
        if glob is not None:
            yield Problem(
                subject=name,
                message=f"{name} is set, and profile {case.profile.name} denies {glob}",
                expected="not set",
                observed=observed.get(name),  # the value of any other variable may be a secret
                fix=f"unset {name}",
            )


def _required(case: Inspection) -> Iterator[Problem]:
    for name, wanted in case.profile.require_variables:
        value = case.around.ruled_variables.get(name)
        if value != wanted:
            is_now = "not set" if value is None else repr(value)
            yield Problem(
                subject=name,
                message=f"{name} is {is_now}, and profile {case.profile.name} requires {wanted!r}",
                expected=wanted,
                observed=value,
                fix=f"export {name}={wanted}",
            )


def _numeric(case: Inspection) -> Iterator[Problem]:
    known = None if case.around.recorded is None else case.around.recorded.variables
    recorded = known or {}
    now = dict(case.observation.variables)
    ruled = {name for name, _ in case.profile.require_variables}
    globs = (*case.profile.allow_variables, *case.profile.deny_variables)
    for name in sorted(filter(_is_numeric, {*recorded, *now})):
        if name in ruled or any(fnmatchcase(name, glob) for glob in globs) or now.get(name) == recorded.get(name):
            continue
        message = f"{name} is " + (f"set to {now[name]!r}" if name in now else "not set") + ", which changes results"
        if known is not None:
            message += "; the good environment had " + (repr(recorded[name]) if name in recorded else "none")
        yield Problem(
            subject=name,
            message=message,
            expected=recorded.get(name, "not set"),
            observed=now.get(name),
            severity="warn",
            fix=f"export {name}={recorded[name]}" if name in recorded else f"unset {name}, or allow it in the policy",
        )


def _is_numeric(name: str) -> bool:
    return re.fullmatch(NUMERIC, name) is not None and re.fullmatch(HARMLESS, name) is None


CHECKS: tuple[Check[Inspection], ...] = (
    Check(
        id="RUN001",
        summary="environment variables that change results are as the policy and the recorded environment have them",
        why="TF32, workspace and backend switches change numbers without changing a file. A set one that the profile "
        "neither requires nor allows, or that differs from the recorded env.json, is a warning; what the profile "
        "denies, or requires and does not get, is a failure.",
        fix="unset the variable, or state it under env in the profile",
        run=_variables,
        example="NVIDIA_TF32_OVERRIDE is set to '0', which changes results",
    ),
)
