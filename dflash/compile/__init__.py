"""The one place that owns torch.compile: its settings, its warm-up, its cache and the account of hits and misses.

Any torch program can use it (``docs/compile.md``); nothing below needs the rest of dflash. In the main thread::

    from dflash.compile import policy
    policy.prepare_environment()                    # before torch is imported
    import torch, ...                               # everything that the program imports
    policy.apply()                                  # and in each thread: PolicyThread, or initializer=policy.apply
    from dflash.compile import compiled, dense, preflight, stall
    dense.install_tripwire()                        # dense flex attention is an error from here on
    preflight.require(preflight.check())            # is it safe to compile here? repairs leaked state
    step = compiled.compile_function(step)          # whole graph, fixed shapes, clear RecompileError
    with stall.watch_stall("compiling", 1800):      # a hang ends the process with all stacks
        step(...).backward()                        # every shape once, in one thread
    policy.forbid_recompiles()                      # an unseen shape is an error now

Threads that train the same parameters also keep ``accumulators.hold_accumulators(parameters)``.
``warmup.warm_up`` does the last three lines with seconds, hits and misses for each graph; ``ranks`` lets processes take
turns; ``kernels.choose`` finds kernel options that fit a small GPU. This module imports no torch.
"""

from dflash.compile.policy import (
    POLICY,
    Line,
    Policy,
    PolicyThread,
    allow_recompiles,
    apply,
    forbid_recompiles,
    prepare_environment,
)

__all__ = [
    "POLICY",
    "Line",
    "Policy",
    "PolicyThread",
    "allow_recompiles",
    "apply",
    "forbid_recompiles",
    "prepare_environment",
]
