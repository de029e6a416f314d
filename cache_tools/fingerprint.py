"""What a compile cache depends on, beyond torch's own keys: one graded list, and the comparison of two observations.

In: two ``Fingerprint`` (see observe.py). Out: a ``Comparison``, field by field. The grades come from experiments on
torch 2.11: fatal means wrong results, a crash or no hit at all; degrading means fewer hits or slower code. Left out
since they change nothing: host name, cache path, working directory, HOME, model path and line, compile threads,
logging and remote-cache switches, times. What only torch knows (digests of its configs) is not here. It does no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

KEY_VERSION = 1
"""Raise it when a field is added, removed or observed in another way."""


class Grade(enum.StrEnum):
    """How bad a difference is; ``GPU`` is fatal where the snapshot holds GPU kernels and degrading elsewhere."""

    FATAL = "fatal"
    GPU = "gpu"
    DEGRADING = "degrading"


class Verdict(enum.StrEnum):
    """The outcome for one field."""

    SAME = "same"
    DEGRADING = "degrading"
    FATAL = "fatal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One input of the fingerprint."""

    name: str
    grade: Grade
    why: str
    """What a difference does."""


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
    Input(name="driver", grade=Grade.DEGRADING, why="kernels may be compiled again from PTX"),
    Input(name="threads", grade=Grade.DEGRADING, why="generated C++ has the number of threads baked in: slower"),
    Input(name="compiler", grade=Grade.DEGRADING, why="C++ kernels are built again"),
    Input(name="include_paths", grade=Grade.DEGRADING, why="the key of a C++ kernel holds them: it is built again"),
    Input(name="inductor_env", grade=Grade.DEGRADING, why="settings of inductor are part of the keys: fewer hits"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """One value for each input; None where the machine has no such thing."""

    key_version: int
    values: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldComparison:
    """One input of a snapshot beside the same input here."""

    name: str
    verdict: Verdict
    snapshot: str | None
    here: str | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
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


def compare(snapshot: Fingerprint, here: Fingerprint, *, gpu_kernels: bool) -> Comparison:
    """Judge restoring a cache made under ``snapshot`` into ``here``; ``gpu_kernels``: the snapshot holds some."""
    if snapshot.key_version != here.key_version:
        versions = f"{snapshot.key_version}", f"{here.key_version}"
        why = "the two describe a machine in different terms: take the snapshot again with this version"
        field = FieldComparison(
            name="key_version", verdict=Verdict.FATAL, snapshot=versions[0], here=versions[1], why=why
        )
        return Comparison(fields=(field,))
    return Comparison(fields=tuple(_compare_one(one, snapshot, here, gpu_kernels) for one in INPUTS))


def _compare_one(one: Input, snapshot: Fingerprint, here: Fingerprint, gpu_kernels: bool) -> FieldComparison:
    before, now = snapshot.values[one.name], here.values[one.name]
    fatal = one.grade is Grade.FATAL or (one.grade is Grade.GPU and gpu_kernels)
    different = Verdict.FATAL if fatal else Verdict.DEGRADING
    verdict = Verdict.SAME if before == now else different
    return FieldComparison(name=one.name, verdict=verdict, snapshot=before, here=now, why=one.why)
