"""``dflash doctor``: the environment's report, plus what the trainer needs of the machine.

In: a project, a profile, and the facts of ``host.py``. Out: one ``envguard`` report with the findings of both. The
checks here are pure functions of ``HostFacts``, in the style of envguard's registry; nothing is printed or repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cache_tools.notes import unwritable
from dflash.compile.checks import FAMILIES as COMPILE_FAMILIES
from dflash.compile.machine import CHECKS as COMPILE_CHECKS
from dflash.compile.machine import look_at_machine
from dflash.host import HostFacts, look_at_host
from envguard.findings import Check, Problem, Repair, run_checks
from envguard.frozen import replace
from envguard.guard import check_project
from envguard.report import Report

GIB = 1 << 30
MIN_FREE_BYTES = 1 * GIB
"""A compile cache with its precompiled header takes about 0.5 GB, a checkpoint of the example about as much."""


def examine(project: Path | None = None, profile: str = "auto") -> Report:
    """Judge the running environment and this machine; raises as ``envguard.check_project`` does.

    Where there is a driver, it initialises CUDA in this process (0.25 s with one H200): nothing may fork later.
    """
    host = look_at_host()
    report = check_project(project, profile).plus(run_checks(CHECKS, host), {"DFL": "Machine"})
    report = report.plus(run_checks(COMPILE_CHECKS, look_at_machine(devices=host.gpus)), COMPILE_FAMILIES)
    told = [f"GPU {g.index} {g.name} (capability {g.capability}, {g.sm_count} SMs)" for g in host.gpus]
    return replace(report, judged=", ".join([report.judged, *told]))


def _compiler(host: HostFacts) -> Iterable[Problem]:
    if host.compiler_path is None:
        fix = f"set CXX={host.other_compiler}, which is on PATH" if host.other_compiler else None
        named = (
            f"the C++ compiler {host.compiler} is not on PATH" if host.compiler else "CXX is set and names no compiler"
        )
        yield Problem(
            subject=host.compiler,
            message=f"{named}, and torch.compile calls it even on a cache hit",
            expected=host.compiler,
            fix=fix,
        )
    elif host.compiler_problem is not None:
        yield Problem(
            subject=host.compiler,
            message=f"the C++ compiler {host.compiler} does not work ({host.compiler_problem}), and torch.compile "
            "calls it even on a cache hit",
            expected=host.compiler,
        )


def _cache_dir(host: HostFacts) -> Iterable[Problem]:
    cache = host.cache
    if cache.configured == "":
        yield Problem(
            subject="TORCHINDUCTOR_CACHE_DIR",
            message="TORCHINDUCTOR_CACHE_DIR is set and empty, which torch cannot use",
            expected="an absolute path",
            fix="unset it, or set it to a directory of your own",
        )
        return
    if cache.configured is not None and not Path(cache.configured).is_absolute():
        yield Problem(
            subject="TORCHINDUCTOR_CACHE_DIR",
            message=f"TORCHINDUCTOR_CACHE_DIR is {cache.configured!r}, which is another cache in every directory",
            expected="an absolute path",
            observed=cache.configured,
            fix=f"set TORCHINDUCTOR_CACHE_DIR={cache.path}, or unset it",
        )
    if not cache.is_directory:
        yield Problem(
            subject=str(cache.path),
            message=f"the compile cache cannot be {cache.path}: {cache.existing} is no directory",
            fix=f"set TORCHINDUCTOR_CACHE_DIR to a directory of your own, or move {cache.existing} away",
        )
    elif cache.existing == cache.path and cache.owner != host.user:
        yield Problem(
            subject=str(cache.path),
            message=f"the compile cache {cache.path} belongs to user {cache.owner}, and what it holds is executed",
            expected=str(host.user),
            observed=str(cache.owner),
        )
    elif not cache.is_writable:
        reason = unwritable(cache.existing) or "it cannot be written"
        yield Problem(subject=str(cache.path), message=f"the compile cache {cache.path} cannot be used: {reason}")


def _disk(host: HostFacts) -> Iterable[Problem]:
    for place, free in host.free_bytes:
        if free < MIN_FREE_BYTES:
            yield Problem(
                subject=str(place),
                message=f"{free / GIB:.2f} GiB are free at {place}, and a run needs {MIN_FREE_BYTES / GIB:.0f} GiB",
                expected=str(MIN_FREE_BYTES),
                observed=str(free),
            )


def _imports(host: HostFacts) -> Iterable[Problem]:
    for package, origin in host.origins:
        if origin != host.source / package:
            found = origin or "nothing"
            yield Problem(
                subject=package,
                message=f"import {package} finds {found}, and this project's is {host.source / package}",
                expected=str(host.source / package),
                observed=str(found),
            )


def _command_line(host: HostFacts) -> Iterable[Problem]:
    for package, reason in host.broken_imports:
        yield Problem(
            subject=package,
            message=f"{package} cannot be imported, so other commands fail: {reason}",
            repair=Repair(sync=True, reinstall=(package,)),
        )


def _gpus(host: HostFacts) -> Iterable[Problem]:
    if host.gpu_problem is not None:
        yield Problem(subject="GPU", message=f"the NVIDIA driver does not answer: {host.gpu_problem}")


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        id="DFL001",
        summary="a C++ compiler is on PATH",
        why="inductor asks it for its version before it looks into the cache, and triton builds its launchers with it.",
        fix="install g++ (apt-get install g++, dnf install gcc-c++), or set CXX to a compiler",
        run=_compiler,
    ),
    Check(
        id="DFL002",
        summary="the compile cache directory is absolute, a directory, writable and this user's",
        why="torch.compile falls back to nothing when it cannot write there; a cache is code, so another user's cache "
        "is another user's code.",
        fix="set TORCHINDUCTOR_CACHE_DIR to a directory of your own",
        run=_cache_dir,
    ),
    Check(
        id="DFL003",
        summary="there is room for a compile cache and a checkpoint",
        why="A full disk leaves a truncated cache entry, or no checkpoint at all.",
        fix="free some space, or move the compile cache (TORCHINDUCTOR_CACHE_DIR) or the run to another disk",
        run=_disk,
    ),
    Check(
        id="DFL004",
        summary="dflash, envguard and cache_tools are imported from this project",
        why="The package index has other projects of these names; what is in site-packages wins over an editable "
        "install, and PYTHONPATH over both.",
        fix="uninstall the other project (uv sync --locked), or unset PYTHONPATH",
        run=_imports,
    ),
    Check(
        id="DFL005",
        summary="the packages that the command line itself needs are there",
        why="dflash needs typer for every command but this one, and rich for progress bars; an interrupted install "
        "leaves a directory without code, which even imports as an empty namespace.",
        fix="reinstall the package",
        run=_command_line,
    ),
    Check(
        id="DFL006",
        summary="the NVIDIA driver, where there is one, answers",
        why="A driver that was updated under a running machine, or a GPU that fell off the bus, refuses every process.",
        fix="run nvidia-smi; where it fails too, the machine needs its administrator (or a reboot)",
        run=_gpus,
    ),
)
