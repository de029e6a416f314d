"""Compiler settings, the same for every command: inductor's configuration is part of its cache key.

``prepare_environment`` runs before torch is imported; ``apply`` after it and before the first ``torch.compile``.
Each line has its reason. Measured figures: ``docs/LOG.md``.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Settings that torch reads while it is imported."""
    from cache_tools.vec_isa import vec_isa

    # torch proves each CPU instruction set by compiling and running a test: six processes that each import torch,
    # 19 s a start. cache_tools reads the same answer from the processor's flags (a slow test holds the two equal).
    if vec_isa(environ).bits:
        environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def apply() -> None:
    """Set torch's compiler configuration in this process (torch 2.11: global; 2.12 and later: of this thread)."""
    import logging

    import torch
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    import cache_tools

    # torch's keys hold the name of the module that imported torch first: dflash train, a benchmark and a test each
    # have another one, and none would hit what the others compiled.
    cache_tools.stable_keys()
    # A 118 MB header outside the cache directory, preprocessed and hashed at every start even when all is cached.
    torch._inductor.config.cpp_cache_precompile_headers = False
    # torch 2.11's FX-tracing flag is process-global: a warm call raises while another thread traces.
    torch._dynamo.config.force_compile_during_fx_trace = True
    # A lazily compiled backward deadlocks with another thread's compile (one autograd thread a device).
    torch._functorch.config.force_non_lazy_backward_lowering = True
    # "No CUDA runtime is found" is said at every compile on a machine without a GPU: the guard has told the device.
    if not torch.cuda.is_available():
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # A hit recompile limit is silent dense attention: fail instead.
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def forbid_recompiles() -> None:
    """From here on, a compilation is an error that names the guard that failed: every graph is known by now."""
    import torch

    torch.compiler.set_stance("fail_on_recompile")


def allow_recompiles() -> None:
    """Undo ``forbid_recompiles``."""
    import torch

    torch.compiler.set_stance("default")
