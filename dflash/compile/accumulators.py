"""Parameters that several threads train on: hold their gradient accumulators, or a compile elsewhere hangs them.

In: leaves that require gradients. Out: something to keep. While AOTAutograd traces, in whatever thread, it switches
autograd's anomaly mode on for the whole process (torch 2.11 to 2.15), in which a new autograd node records a Python
stack. A leaf's accumulator is made under the leaf's mutex when a forward first needs it, and dies with the graph: a
thread that makes one waits for the interpreter's lock under the mutex, while a thread that has the lock waits for the
mutex (inferred from the stacks). An accumulator that is alive is not made again, and threads with parameters of their
own need none of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dflash.errors import ConfigError


def hold_accumulators(parameters: Iterable[Tensor]) -> tuple[Any, ...]:
    """Accumulators of the leaves that require gradients; keep the result as long as threads share them.

    It keeps the leaves alive too.

    Raises:
        ConfigError: a tensor was given (iterating over its rows would hold nothing), or what cannot be iterated over.
    """
    if isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        kind = "a tensor" if isinstance(parameters, Tensor) else f"a {type(parameters).__name__}"
        raise ConfigError(f"hold_accumulators: got {kind}, allowed are several: model.parameters(), or [parameter]")
    with torch.inference_mode(False), torch.enable_grad():
        nodes = [leaf.view_as(leaf).grad_fn for leaf in parameters if leaf.requires_grad and leaf.is_leaf]
    return tuple(node.next_functions[0][0] for node in nodes if node is not None)
