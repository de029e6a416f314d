"""Keys of torch's compile caches that do not depend on the order of imports.

In: a process that has imported torch. Out: nothing; pickling of ``torch.memory_format`` is made unambiguous. torch 2.11
hashes the pickled metadata of every input. A memory format pickles as a global without a module, so pickle searches all
imported modules for one that has an attribute ``torch``, and the key holds the name of the first: ``torch._utils``, or
``__mp_main__``, or whatever module of the program imported torch first. The same graph then misses when it is started
from another script, from a test, from a notebook, or after another import was added. (``torch.layout`` has had an entry
of this kind in torch from the start.)
"""

from __future__ import annotations

import copyreg
import sys
from typing import Any

from envguard.errors import UsageError


def stable_keys() -> None:
    """Call it after torch was imported and before the first compiled call; entries made without it miss once.

    A ``torch.memory_format`` that is pickled afterwards names this module: do not put one into files for others.

    Raises:
        UsageError: torch is not imported.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise UsageError("torch is not imported yet: call stable_keys() after importing it")
    copyreg.pickle(torch.memory_format, _reduce)


def memory_format(name: str) -> Any:
    """``torch.contiguous_format`` for ``torch.contiguous_format``; what a pickle of one calls."""
    return getattr(sys.modules["torch"], name.removeprefix("torch."))


def _reduce(value: object) -> tuple[Any, tuple[str]]:
    return memory_format, (str(value),)
