"""Never dense: flex attention either runs as a compiled kernel or fails before it allocates.

Outside ``torch.compile`` flex attention computes the whole score matrix of every head: 276 GiB where the kernel needs
none, and torch says so at most once, in a warning. Two belts: ``flex_or_die`` for our own calls, a branch that
compiling folds away; ``install_tripwire`` for code we do not own (transformers' flex attention), which replaces the
operator's dense kernels, forward and backward, for the whole process. Both name the likely causes. Where recompiles
are forbidden torch refuses first, in words of its own, which the tripwire makes the same error.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash.compile.compiled import FORBIDDEN
from dflash.errors import RunError

CAUSES = (
    "torch.compile is off, was bypassed or failed, its stance is eager, or a recompile limit is hit; "
    "run `dflash preflight`, or use SDPA attention"
)
OUTSIDE = f"flex attention was called outside torch.compile, refused before it allocates: {CAUSES}"


class DenseAttentionError(RunError):
    """Flex attention was about to build the full score matrix."""


def flex_or_die(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_mask: BlockMask,
    enable_gqa: bool = False,
    kernel_options: dict[str, Any] | None = None,
) -> Tensor:
    """``flex_attention`` inside a compiled function.

    Raises:
        DenseAttentionError: it is not being compiled.
    """
    # Not is_compiling(): from torch 2.13 that is true in every thread while any thread compiles.
    if not torch.compiler.is_dynamo_compiling():
        raise DenseAttentionError(OUTSIDE)
    options: Any = kernel_options
    out = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=enable_gqa, kernel_options=options)
    assert isinstance(out, Tensor)  # more only where more is asked for
    return out


def install_tripwire() -> None:
    """Make dense flex attention an error in this process, whoever calls it; repeated calls change nothing.

    It also refuses backends that run graphs eagerly ("eager", "aot_eager"), which are dense too.
    """
    for operator in _operators():
        if not _is_tripped(operator):
            operator.py_kernels[_DENSE] = _refusal(operator.name())
            operator._dispatch_cache.clear()
    setup = getattr(_eager(), _SETUP, None)
    if setup and not hasattr(setup, _MARK):
        setattr(_eager(), _SETUP, _told(setup))


def tripwire_installed() -> bool:
    """Whether both operators refuse."""
    return all(_is_tripped(operator) for operator in _operators())


def remove_tripwire() -> None:
    """Give the dense kernels back: for tests and for debugging small shapes."""
    for operator in _operators():
        if _is_tripped(operator):
            operator.py_kernels[_DENSE] = _dense_kernels()[operator.name()]
            operator._dispatch_cache.clear()
    setup = getattr(_eager(), _SETUP, None)
    if hasattr(setup, _MARK):
        setattr(_eager(), _SETUP, getattr(setup, _MARK))


_DENSE = torch._C.DispatchKey.CompositeExplicitAutograd
_MARK = "_dflash_tripwire"
_SETUP = "setup_compilation_env"
"""What an eager call enters to run the operator through Dynamo (torch 2.11 nn/attention/flex_attention.py)."""


def _eager() -> Any:
    return sys.modules[flex_attention.__module__]


def _told(setup: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def guarded() -> Iterator[Any]:
        try:
            with setup() as backend:
                yield backend
        except RuntimeError as error:
            if FORBIDDEN not in str(error):
                raise
            raise DenseAttentionError(OUTSIDE) from error

    setattr(guarded, _MARK, setup)
    return guarded


def _module() -> Any:
    return sys.modules["torch._higher_order_ops.flex_attention"]  # the attribute of that name is the operator


def _operators() -> tuple[Any, Any]:
    return _module().flex_attention, _module().flex_attention_backward


def _dense_kernels() -> dict[str, Callable[..., Any]]:
    return {
        "flex_attention": _module().sdpa_dense,
        "flex_attention_backward": _module().sdpa_dense_backward,
    }


def _is_tripped(operator: Any) -> bool:
    return hasattr(operator.py_kernels[_DENSE], _MARK)


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(query: Any, key: Any, *_rest: Any, **_named: Any) -> Any:
        scores = [*query.shape[:3], key.shape[2]]
        gib = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] * 4 / 2**30
        raise DenseAttentionError(
            f"{name}: the dense path was reached, refused before it allocates scores {scores} ({gib:.1f} GiB): {CAUSES}"
        )

    setattr(refuse, _MARK, True)
    return refuse
