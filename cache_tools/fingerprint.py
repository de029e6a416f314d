"""What a compile cache depends on, beyond torch's own keys: one graded list, and the comparison of two observations.

In: two ``Fingerprint`` (see observe.py). Out: a ``Comparison``, field by field. The grades come from experiments on
torch 2.11: fatal means wrong results, a crash or no hit at all; degrading means fewer hits or slower code. Left out
since they change nothing: host name, cache path, working directory, HOME, model path and line, compile threads,
logging and remote-cache switches, times. What only a process with torch knows (digests of its configs, autocast) is
told by the process that compiled, and unknown elsewhere: an unknown value is no difference. It does no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from envguard.frozen import Frozen, replace

KEY_VERSION = 2
"""Raise it when a field is added, removed or observed in another way."""
MAX_VALUE = 4096
"""Characters of one value, all of them printable."""


class Grade(enum.StrEnum):
    """How bad a difference is: ``GPU`` is fatal where the snapshot holds GPU kernels and degrading elsewhere,
    ``STRICT`` is fatal where the user asks for strictness and degrading elsewhere."""

    FATAL = "fatal"
    GPU = "gpu"
    STRICT = "strict"
    DEGRADING = "degrading"


class Verdict(enum.StrEnum):
    """The outcome for one field."""

    SAME = "same"
    UNKNOWN = "unknown"
    """Only torch knows it, and on one side (or both) no process with torch told."""
    DEGRADING = "degrading"
    FATAL = "fatal"


class Input(Frozen):
    """One input of the fingerprint."""

    name: str
    grade: Grade
    why: str
    """What a difference does."""
    told: bool = False
    """Only a process with torch knows it (told.py); None then means unknown."""


_KEYS = "it is part of every key: nothing would hit"
_NATIVE = "shared objects are linked against it: they may not load"
_KERNELS = "GPU kernels are compiled for it"
INPUTS: tuple[Input, ...] = (
    Input(name="torch_version", grade=Grade.FATAL, why=_KEYS),
    Input(name="torch_git", grade=Grade.FATAL, why="same version, other source: hits would be stale"),
    Input(name="torch_cuda", grade=Grade.FATAL, why=_KEYS + " on a GPU, and libtorch differs"),
    Input(name="torch_hip", grade=Grade.FATAL, why=_KEYS + " on a GPU, and libtorch differs"),
    Input(name="python", grade=Grade.FATAL, why="entries hold pickles and extension modules of one minor version"),
    Input(name="machine", grade=Grade.FATAL, why="shared objects hold its instructions"),
    Input(
        name="cpu_isa",
        grade=Grade.FATAL,
        why="kernels are generated for one vector width, which torch's key leaves out: wrong numbers or SIGBUS",
    ),
    Input(name="cpu_isa_flags", grade=Grade.FATAL, why="kernels may use instructions that this processor lacks"),
    Input(name="libc", grade=Grade.FATAL, why=_NATIVE),
    Input(name="libstdcxx", grade=Grade.FATAL, why=_NATIVE),
    Input(name="triton", grade=Grade.GPU, why=_KEYS + " on a GPU"),
    Input(name="gpu_name", grade=Grade.GPU, why=_KEYS),
    Input(name="gpu_capability", grade=Grade.GPU, why=_KERNELS),
    Input(name="gpu_sm_count", grade=Grade.GPU, why=_KERNELS + ": it is baked into their launch sizes"),
    Input(
        name="gpu_indices",
        grade=Grade.DEGRADING,
        why="keys hold the index of the device: what was compiled for an index that is not here is never hit",
    ),
    Input(
        name="libtorch",
        grade=Grade.STRICT,
        why="torch's key hashes its Python files and not its libraries: with other libraries hits may be stale",
    ),
    Input(name="driver", grade=Grade.DEGRADING, why="kernels may be compiled again from PTX"),
    Input(name="threads", grade=Grade.DEGRADING, why="generated C++ has the number of threads baked in: slower"),
    Input(name="compiler", grade=Grade.DEGRADING, why="C++ kernels are built again"),
    Input(name="include_paths", grade=Grade.DEGRADING, why="the key of a C++ kernel holds them: it is built again"),
    Input(name="inductor_env", grade=Grade.DEGRADING, why="settings of inductor are part of the keys: fewer hits"),
    Input(
        name="torch_key",
        grade=Grade.FATAL,
        told=True,
        why="torch's own files differ, and " + _KEYS.replace("it is", "are"),
    ),
    Input(
        name="autocast",
        grade=Grade.STRICT,
        told=True,
        why="torch 2.11 keys only whether autocast is on: a hit gives results in the other dtype",
    ),
    Input(name="inductor_config", grade=Grade.DEGRADING, told=True, why="every option is part of the keys: all miss"),
    Input(
        name="functorch_config", grade=Grade.DEGRADING, told=True, why="it is part of the AOT keys: those entries miss"
    ),
    Input(
        name="precision",
        grade=Grade.DEGRADING,
        told=True,
        why="matmul precision and deterministic mode are part of the keys: all miss",
    ),
)
TOLD = frozenset(one.name for one in INPUTS if one.told)


class Fingerprint(Frozen):
    """One value for each input; None where the machine has no such thing, or where nobody told."""

    key_version: int
    values: Mapping[str, str | None]

    def with_told(self, told: Mapping[str, str | None]) -> Fingerprint:
        """The same with what a process with torch knows (or will make true) put in.

        Raises:
            ValueError: ``told`` names an input that is observed, or none.
        """
        if odd := sorted(told.keys() - TOLD):
            raise ValueError(f"{', '.join(odd)}: only {', '.join(sorted(TOLD))} are told")
        return replace(self, values={**self.values, **told})


class FieldComparison(Frozen):
    """One input of a snapshot beside the same input here."""

    name: str
    verdict: Verdict
    snapshot: str | None
    here: str | None
    why: str


class Comparison(Frozen):
    """Every field, in the order of ``INPUTS``."""

    fields: tuple[FieldComparison, ...]

    @property
    def fatal(self) -> tuple[FieldComparison, ...]:
        """Differences that forbid a restore."""
        return tuple(field for field in self.fields if field.verdict is Verdict.FATAL)

    @property
    def degrading(self) -> tuple[FieldComparison, ...]:
        """Differences that cost hits or speed."""
        return tuple(field for field in self.fields if field.verdict is Verdict.DEGRADING)


def compare(snapshot: Fingerprint, here: Fingerprint, *, gpu_kernels: bool, strict: bool = False) -> Comparison:
    """Judge using a cache made under ``snapshot`` in ``here``.

    ``gpu_kernels``: the cache holds some. ``strict``: what only warns by default, since it is rare, is fatal too.
    """
    if snapshot.key_version != here.key_version:
        versions = f"{snapshot.key_version}", f"{here.key_version}"
        why = "the two describe a machine in different terms: take the snapshot again with this version"
        field = FieldComparison(
            name="key_version", verdict=Verdict.FATAL, snapshot=versions[0], here=versions[1], why=why
        )
        return Comparison(fields=(field,))
    fatal = {Grade.FATAL} | ({Grade.GPU} if gpu_kernels else set()) | ({Grade.STRICT} if strict else set())
    return Comparison(fields=tuple(_compare_one(one, snapshot, here, fatal) for one in INPUTS))


def _compare_one(one: Input, snapshot: Fingerprint, here: Fingerprint, fatal: set[Grade]) -> FieldComparison:
    before, now = snapshot.values[one.name], here.values[one.name]
    if one.told and (before is None or now is None):
        verdict = Verdict.UNKNOWN
    elif before == now:
        verdict = Verdict.SAME
    else:
        verdict = Verdict.FATAL if one.grade in fatal else Verdict.DEGRADING
    return FieldComparison(name=one.name, verdict=verdict, snapshot=before, here=now, why=one.why)
