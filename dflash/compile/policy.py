"""Compiler settings, the same for every command: much of torch's configuration is part of its cache keys.

``prepare_environment`` runs before torch is imported; ``apply`` after it, before the first ``torch.compile``, and in
every thread that compiles, calls a compiled function or runs a backward: from torch 2.12 a setting made in one thread
is not seen by another. ``PolicyThread`` and ``ThreadPoolExecutor(initializer=policy.apply)`` do that. Each line of
``POLICY`` has its reason; whether it works on the torch in use is proved by ``behaviour.py``, not by a version number.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from dflash.compile.locks import Lock
from dflash.errors import ConfigError

SPARE_RECOMPILES = 64
"""The limit is per code object and costs nothing until it is reached; torch's 8 is less than 3 GPUs x 2 shapes x 2."""

_tracing = Lock()
"""Threads that apply the policy first and together would overlap in the trace below: the leak of CMP001 and CMP002."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One setting of torch."""

    module: str
    name: str
    value: bool | int
    reason: str
    torch: str
    """The releases in which it matters, as read and run (shared by the tests of the newest torch)."""

    def now(self) -> bool | int | None:
        """The value in this thread; None where this torch does not know the setting."""
        value: bool | int | None = getattr(importlib.import_module(self.module), self.name, None)
        return value

    def put(self) -> None:
        """Set it in this thread (torch 2.11: in the process)."""
        setattr(importlib.import_module(self.module), self.name, self.value)

    def in_force(self) -> bool:
        """Whether this thread has the value, or more where the value is a limit."""
        now = self.now()
        if now is None:
            return True
        return now == self.value if isinstance(self.value, bool) else now >= self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """All lines; a value, so two commands with equal policies have equal cache keys."""

    lines: tuple[Line, ...]

    def apply(self) -> None:
        """Set every line in this thread (torch 2.11: in the whole process); a few microseconds after the first time."""
        for line in self.lines:
            if not line.in_force():
                line.put()
        # The only plain symbolic_trace of inductor: while it runs, an nn.Module call of any thread raises NameError.
        # torch keeps its result, so traced here once it never runs again.
        from torch._inductor.loop_body import InterpreterShim

        with _tracing.held():
            InterpreterShim._dummy_gm()

    def broken(self) -> tuple[Line, ...]:
        """Lines that are not in force in this thread."""
        return tuple(line for line in self.lines if not line.in_force())

    def with_room(self, num_graphs: int) -> Policy:
        """The same with recompile limits of at least ``num_graphs`` = devices x shapes x grad modes.

        Raises:
            ConfigError: it is no number of graphs.
        """
        if not isinstance(num_graphs, int) or isinstance(num_graphs, bool) or num_graphs < 0:
            raise ConfigError(f"with_room: got {num_graphs!r} graphs, allowed are whole numbers from 0")
        return replace(
            self,
            lines=tuple(
                replace(line, value=max(line.value, num_graphs)) if line.name.endswith("recompile_limit") else line
                for line in self.lines
            ),
        )


POLICY = Policy(
    lines=(
        Line(
            module="torch._inductor.config",
            name="cpp_cache_precompile_headers",
            value=False,
            reason="a 118 MB header outside the cache directory, preprocessed and hashed at every start, cached or not",
            torch="2.11 and later",
        ),
        Line(
            module="torch._dynamo.config",
            name="force_compile_during_fx_trace",
            value=True,
            reason="the FX tracing flag is one for the process: a warm call raises while another thread traces",
            torch="2.11 to 2.13 (2.14 keeps the flag per thread, where the line changes nothing)",
        ),
        Line(
            module="torch._dynamo.config",
            name="automatic_dynamic_shapes",
            value=False,
            reason="torch.compile(dynamic=False) turns it off for the process while a call runs: a call that ends in "
            "another thread turns it on again, and a compile going on then makes a dynamic graph, with other kernels "
            "and another cache key",
            torch="2.11 (from 2.12 a setting is the thread's own, where the line changes nothing for dynamic=False)",
        ),
        Line(
            module="torch._functorch.config",
            name="force_non_lazy_backward_lowering",
            value=True,
            reason="a backward compiled at its first call waits for another thread's compile, which waits for the one "
            "autograd thread of the device that it runs in: a deadlock",
            torch="2.11 and later",
        ),
        Line(
            module="torch._dynamo.config",
            name="recompile_limit",
            value=SPARE_RECOMPILES,
            reason="all devices, shapes and grad modes of one function share its limit, and past it flex attention is "
            "silently dense",
            torch="all; from 2.12 per thread",
        ),
        Line(
            module="torch._dynamo.config",
            name="accumulated_recompile_limit",
            value=4 * SPARE_RECOMPILES,
            reason="the same over all compiled functions that share a code object",
            torch="all; from 2.12 per thread",
        ),
        Line(
            module="torch._dynamo.config",
            name="fail_on_recompile_limit_hit",
            value=True,
            reason="a hit limit is an error, not a fallback to the dense eager path",
            torch="all; from 2.12 per thread",
        ),
    )
)


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Settings that torch reads while it is imported."""
    from cache_tools.vec_isa import vec_isa

    # torch proves each CPU instruction set by compiling and running a test: six processes that each import torch,
    # 19 s a start. cache_tools reads the same answer from the processor's flags (a slow test holds the two equal).
    if vec_isa(environ).bits:
        environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def apply(policy: Policy = POLICY) -> None:
    """Set torch's compiler configuration in this thread, as a thread initialiser or first thing after the imports.

    Raises:
        StorageError: torch, which does so when its compiler is imported, cannot make its cache directory.
        ConfigError: it is no policy, or torch, which reads its environment variables then, refuses the value of one.
    """
    _check_policy("policy.apply", policy)
    import logging

    import cache_tools
    from cache_tools.errors import StorageError

    try:
        import torch

        # torch's keys hold the name of the module that imported torch first: dflash train, a benchmark and a test each
        # have another one, and none would hit what the others compiled.
        cache_tools.stable_keys()
        policy.apply()
    except ValueError as error:
        if refused := _refused(error, os.environ):
            raise refused from error
        raise
    except OSError as error:  # torch 2.11 _inductor/runtime/cache_dir_utils.py: cache_dir
        raise StorageError(
            f"torch cannot make its cache directory {error.filename!r} ({error.strerror}): "
            "set TORCHINDUCTOR_CACHE_DIR to a directory that can be written"
        ) from None
    if not torch.cuda.is_available():
        # "No CUDA runtime is found" is said at every compile on a machine without a GPU: the guard has told the device.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        # A CUDA build without a GPU makes a device guard in the first thread that compiles, keeps it for the process,
        # and frees it with that thread: the next compile is a segmentation fault. This thread does not end before it.
        if threading.current_thread() is threading.main_thread() and hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
            torch._C._ensureCUDADeviceGuardSet()  # torch/_subclasses/fake_tensor.py: FakeTensorMode.__enter__


def _check_policy(who: str, policy: object) -> None:
    if not isinstance(policy, Policy):
        raise ConfigError(f"{who}: got {policy!r}, allowed is a Policy, such as policy.POLICY")


def _refused(error: ValueError, environ: Mapping[str, str]) -> ConfigError | None:
    """The variables that torch's words quote the value of; torch itself does not always name them."""
    told = ", ".join(
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith("TORCH") and value and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", str(error))
    )
    words = str(error).strip().partition("\n")[0]
    return ConfigError(f"torch does not start with {told} ({words}): correct it, or unset it") if told else None


class PolicyThread(threading.Thread):
    """A thread that applies its ``policy`` before its target runs; one with more room is set before the start."""

    policy: Policy = POLICY

    def start(self) -> None:
        """Raises ConfigError here, not in the new thread, where its policy is none."""
        _check_policy("PolicyThread", self.policy)
        super().start()

    def run(self) -> None:
        self.policy.apply()
        super().run()


_forbidden = False
"""Whether ``forbid_recompiles`` is to hold; torch's stance can be set by anybody."""


def forbid_recompiles() -> None:
    """From here on, a compilation is an error that names the guard that failed: every graph is known by now.

    Process-wide, every thread at once, and nothing else changes: ``compiled.py`` turns torch's words into one line.
    Whoever sets another stance takes it away without a word: ``preflight.check(tries=False)`` tells (CMP010).
    """
    global _forbidden
    import torch

    torch.compiler.set_stance("fail_on_recompile")
    _forbidden = True


def allow_recompiles() -> None:
    """Undo ``forbid_recompiles``."""
    global _forbidden
    import torch

    torch.compiler.set_stance("default")
    _forbidden = False


def recompiles_are_forbidden() -> bool:
    """Whether ``forbid_recompiles`` was called last, not ``allow_recompiles``; torch's stance may be another by now."""
    return _forbidden


def as_record(policy: Policy) -> list[dict[str, Any]]:
    """The lines for ``--json`` and run records."""
    return [
        {"setting": f"{line.module}.{line.name}", "value": line.value, "reason": line.reason, "torch": line.torch}
        for line in policy.lines
    ]
