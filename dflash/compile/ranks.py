"""Several processes, one cache: each sees its own GPU as index 0, and rank 0 compiles while the others wait to hit.

In: a rank and a barrier. Out: turns. The device's index is part of torch's cache key: a rank that compiles for cuda:1
shares nothing with one that compiles for cuda:0. No process group is made here, and the barrier is the caller's
(``torch.distributed.barrier``); where rank 0 dies or hangs, the barrier's own time limit or ``stall.py`` ends the wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager

from dflash.compile.warmup import start_compiler
from dflash.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def see_own_gpu(local_rank: int, environ: MutableMapping[str, str] = os.environ) -> str:
    """Leave only this rank's GPU visible, before anything initialises CUDA; returns its old name.

    Raises:
        ConfigError: the variable that limits the GPUs names fewer than the ranks need (empty: none), or it is no rank.
    """
    _check_rank("see_own_gpu", local_rank, "LOCAL_RANK")
    given = environ.get(VISIBLE)
    names = None if given is None else [name.strip() for name in given.split(",") if name.strip()]
    if names is not None and "-1" in names:  # where CUDA stops reading
        names = names[: names.index("-1")]
    if names is not None and local_rank >= len(names):
        raise ConfigError(f"{VISIBLE}={given}: {len(names)} GPUs, and local rank {local_rank} needs one of its own")
    own = names[local_rank] if names is not None else str(local_rank)
    environ[VISIBLE] = own
    return own


@contextmanager
def first_rank_first(rank: int, barrier: Callable[[], object]) -> Iterator[None]:
    """Rank 0's block runs first, then all others' at once; every rank passes the barrier exactly once.

    The others start the compiler while they wait, without its pool of up to 32 processes: they are to find what rank 0
    compiled, and three such pools slow rank 0 by a seventh (four ranks on one H200). One that misses all the same
    compiles in its own process. ``rank`` counts the processes that share a cache directory.

    An exception in rank 0's block leaves without the barrier, so that the others fail at it instead of compiling too.

    Raises:
        ConfigError: it is no rank, or ``barrier`` cannot be called.
    """
    _check_rank("first_rank_first", rank, "RANK")
    if not callable(barrier):
        raise ConfigError(f"first_rank_first: got barrier={barrier!r}, allowed is something to call")
    if rank == 0:
        yield
        barrier()
        return
    import torch._inductor.config as inductor

    with inductor.patch(compile_threads=1):  # not part of torch's keys
        start_compiler()
        barrier()
        yield


def _check_rank(who: str, rank: object, variable: str) -> None:
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        raise ConfigError(
            f'{who}: got rank {rank!r}, allowed are whole numbers from 0, such as int(os.environ["{variable}"])'
        )
