"""The observation: what an environment is, as one frozen value, made without importing torch.

In: an interpreter (the running one by default). Out: an ``Observation`` that every check judges and ``freeze`` writes.
It reads files and the driver; it has no opinion and knows no policy. What is damaged becomes a value in it (a
distribution's ``problem``, ``torch_problem``), so that a broken environment can still be judged.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from envguard.errors import ProbeError
from envguard.frozen import Frozen, replace
from envguard.pkg import canonical
from envguard.probes import gpu, imports, interpreter
from envguard.probes.distributions import Distribution, read_installed
from envguard.probes.gpu import Gpu
from envguard.probes.imports import ImportOrigin
from envguard.probes.interpreter import Interpreter
from envguard.probes.path import find_launchers
from envguard.probes.records import UNREADABLE, Record, read_records
from envguard.probes.startup import StartupFile, read_startup
from envguard.probes.torch_build import TorchBuild, read_torch_build
from envguard.statcache import StatCache

if TYPE_CHECKING:
    from envguard.probes.contents import Contents
    from envguard.probes.elf import CudaLinks
    from envguard.probes.hashing import Progress

Fact = TypeVar("Fact")

RELEVANT_VARIABLES = re.compile(
    r"PYTHON(PATH|HOME|NOUSERSITE|PYCACHEPREFIX|OPTIMIZE)|LD_(LIBRARY_PATH|PRELOAD)|CONDA_PREFIX|CUDA_\w+|CUBLAS_\w+|"
    r"NVIDIA_TF32_OVERRIDE|(TORCH|PYTORCH|TORCHINDUCTOR|TRITON|FLA|NCCL|OMP|MKL)_?\w*|ATEN_CPU_CAPABILITY"
)
"""Variables that change what is imported or computed. Nothing that carries a credential matches."""


class Observation(Frozen):
    """One environment at one moment; no field holds a time."""

    interpreter: Interpreter
    system: str
    """Operating system and machine, such as ``linux x86_64``."""
    distributions: tuple[Distribution, ...]
    directories: tuple[str, ...]
    """Importable directories at the top of site-packages."""
    programs: frozenset[str]
    """Names in the environment's ``bin``."""
    torch: TorchBuild | None
    torch_problem: str | None
    """Why the build could not be read although torch is there."""
    driver: str | None
    """NVIDIA driver version; None where there is no driver."""
    driver_problem: str | None
    """Why the version could not be read although a driver seems to be there."""
    gpus: tuple[Gpu, ...] | None
    """None where they were not asked for."""
    variables: tuple[tuple[str, str], ...]
    """The relevant environment variables of this process, sorted."""
    startup: tuple[StartupFile, ...]
    """What runs at every start of the interpreter."""
    imports: tuple[ImportOrigin, ...]
    """Where the modules of the watched distributions come from; () where none was named."""
    cuda_directories: tuple[str, ...]
    """Such as ``cu13``: the CUDA releases whose libraries lie in the shared ``nvidia`` directory."""
    contents: Contents | None
    """The installed files against RECORD; None in the fast tier."""
    cuda_links: CudaLinks | None
    """Which native module needs which CUDA library; None in the fast tier."""
    launchers: tuple[tuple[str, str], ...] = ()
    """(name, path) of every launcher of workers that PATH finds."""
    is_conda: bool = False
    """Whether conda keeps its records in the prefix."""
    user_site_names: tuple[str, ...] | None = None
    """What lies in the user's own site-packages, where they are importable and exist."""


def observe(
    python: Path | None = None,
    *,
    with_gpus: bool = False,
    environ: Mapping[str, str] | None = None,
    watched: Sequence[str] = (),
    cache: StatCache | None = None,
) -> Observation:
    """Observe the running interpreter's environment, or that of ``python``, by what is quick to read.

    ``with_gpus`` initialises CUDA in this process (0.25 s with one H200, see ``probes.gpu``). ``environ`` defaults to
    the process environment, ``cache`` to the user's. ``watched`` are the distributions whose imports are looked up.

    Raises:
        UsageError: ``python`` is no interpreter.
        ProbeError: site-packages or bin cannot be listed, or ``with_gpus`` and the driver refuses.
    """
    judged = interpreter.find_interpreter(python)
    site_packages = judged.site_packages
    installed = read_installed(site_packages)
    records = read_records(
        site_packages, [dist.directory for dist in installed.distributions], cache or StatCache.default()
    )
    distributions = tuple(_with_record(dist, records.get(dist.directory)) for dist in installed.distributions)
    torch, torch_problem = _probe(lambda: read_torch_build(judged.site_packages))
    driver, driver_problem = _probe(gpu.driver_version)
    variables = os.environ if environ is None else environ
    startup = read_startup(site_packages, distributions, records, _places_of_sitecustomize(judged, variables))
    path = imports.search_path(judged, [place for each in startup for place in each.adds], variables)
    return Observation(
        interpreter=judged,
        system=f"{sys.platform} {os.uname().machine}",
        distributions=distributions,
        directories=installed.directories,
        programs=_list_programs(judged.prefix / "bin"),
        torch=torch,
        torch_problem=torch_problem,
        driver=driver,
        driver_problem=driver_problem,
        gpus=gpu.gpus() if with_gpus else None,
        variables=tuple(sorted((k, v) for k, v in variables.items() if RELEVANT_VARIABLES.fullmatch(k))),
        startup=startup,
        imports=imports.find_imports(_modules(watched, distributions, records), path, judged.version),
        cuda_directories=_cuda_directories(site_packages / "nvidia"),
        contents=None,
        cuda_links=None,
        launchers=find_launchers(variables, judged.prefix),
        is_conda=(judged.prefix / "conda-meta").is_dir(),
        user_site_names=None if judged.user_site is None else _list_user_site(judged.user_site),
    )


def look_closer(
    observation: Observation,
    *,
    watched: Sequence[str],
    everything: bool = False,
    environ: Mapping[str, str] | None = None,
    cache: StatCache | None = None,
    progress: Progress | None = None,
) -> Observation:
    """``observation`` with the installed files compared with RECORD and the needs of native modules.

    The Python files of ``watched`` distributions are hashed, all files where ``everything`` is wanted (seconds a
    gigabyte; ``progress`` is told how far it is).
    """
    from envguard import lookcache
    from envguard.probes import uvcache
    from envguard.probes.contents import read_contents
    from envguard.probes.elf import read_cuda_links
    from envguard.probes.tree import Tree, walk

    site_packages, distributions = observation.interpreter.site_packages, observation.distributions
    kept = cache or StatCache.default()
    names = frozenset(map(canonical, watched))

    def read(tree: Tree) -> lookcache.Compared:
        contents = read_contents(
            site_packages, distributions, tree, watched=names, everything=everything, cache=kept, progress=progress
        )
        place = uvcache.cache_directory(os.environ if environ is None else environ)
        changed = uvcache.explain(contents.changed, distributions, site_packages, place)
        return lookcache.Compared(
            contents=replace(contents, changed=changed),
            cuda_links=read_cuda_links(site_packages, tree.files, contents.modules),
        )

    with _without_collection():
        if everything:
            compared = read(walk(site_packages, with_bytecode=True))
        else:
            compared = lookcache.compare(site_packages, distributions, names, read, kept)
    return replace(observation, contents=compared.contents, cuda_links=compared.cuda_links)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection while tens of thousands of values are made that all stay: it would find nothing."""
    import gc

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _with_record(dist: Distribution, record: Record | None) -> Distribution:
    if record is None:
        if not dist.has_record:
            return dist
        record = UNREADABLE
    problem = "; ".join(each for each in (dist.problem, record.problem) if each) or None
    is_editable = dist.origin is not None and dist.origin.editable
    return replace(dist, fingerprint=None if is_editable else record.fingerprint, problem=problem)


def _places_of_sitecustomize(judged: Interpreter, environ: Mapping[str, str]) -> list[str]:
    """Directories before site-packages that a sitecustomize could come from, the standard library's aside."""
    places = [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return places + ([str(judged.user_site)] if judged.user_site else [])


def _modules(
    watched: Sequence[str], distributions: Sequence[Distribution], records: Mapping[str, Record]
) -> list[tuple[str, str, str | None]]:
    """(distribution, module, own file); where a distribution is not installed, the module that bears its name."""
    found: list[tuple[str, str, str | None]] = []
    for name in map(canonical, watched):
        own = [dist for dist in distributions if dist.name == name]
        if not own:
            found.append((name, name.replace("-", "_"), None))
        for dist in own:
            record = records.get(dist.directory)
            found += [(name, module, path) for module, path in (record.modules if record else ())]
    return found


def _cuda_directories(place: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(name for name in os.listdir(place) if re.fullmatch(r"cu\d+", name)))
    except OSError:  # no NVIDIA package is installed
        return ()


def _list_programs(directory: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError as error:
        raise ProbeError(f"{directory} cannot be listed ({error.strerror}): run uv sync --locked") from error


def _list_user_site(directory: Path) -> tuple[str, ...] | None:
    try:
        return tuple(sorted(os.listdir(directory)))
    except OSError:  # what cannot be listed cannot be imported from
        return None


def _probe(read: Callable[[], Fact]) -> tuple[Fact | None, str | None]:
    """The fact, or why it cannot be read."""
    try:
        return read(), None
    except ProbeError as error:
        return None, str(error)
