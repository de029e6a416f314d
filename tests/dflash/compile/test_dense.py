"""Dense flex attention is refused for every cause of a fallback, by our own trap and by the tripwire for others' code.

The causes are those of a process that ran out of 276 GiB: a hit limit, a hidden FX trace, an eager stance, compiling
turned off, suppressed errors, a backend that runs graphs eagerly. Each case is a fresh process, since most are settings
of a process, and says what it met: "refused", or what came back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

COMMON = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, torch._dynamo
import torch.fx._symbolic_trace as tracing
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from dflash.attention import AttentionPlan, attend
from dflash.compile import dense
torch.set_grad_enabled(False)
config = torch._dynamo.config

def tensors(tokens=16):
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, None, tokens, tokens, device="cpu", BLOCK_SIZE=16)
    return [torch.randn(1, 2, tokens, 16) for _ in range(3)], mask

def outcome(call):
    try:
        call()
        return "ran"
    except Exception as error:
        chain = []
        while error is not None:
            chain.append(error)
            error = error.__cause__ or error.__context__
        if any(isinstance(each, dense.DenseAttentionError) for each in chain):
            return "refused"
        return f"{type(chain[0]).__name__}: {str(chain[0]).splitlines()[0]}"

# What training calls, and what a library that we do not own calls.
def ours(q, k, v, mask):
    return attend(q, k, v, AttentionPlan("flex", mask))
def theirs(q, k, v, mask):
    return flex_attention(q, k, v, block_mask=mask)

# Dynamo alone decides about all of these fallbacks; a backend that builds nothing stands for inductor.
def backend(graph, inputs):
    return lambda *given: (torch.zeros(1),)
def compiled(**options):
    return torch.compile(function, backend=backend, dynamic=False, **options)

# Each case in a fork of its own: most causes are settings of a process, and importing torch takes seconds.
results = {}
for name, who, code in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if os.fork() == 0:
        function = {"ours": ours, "theirs": theirs}[who]
        if who == "theirs":
            dense.install_tripwire()
        try:
            exec(code)
            os.write(write, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(write)
    results[f"{name}, {who}"] = json.loads(os.fdopen(read).read() or '"died"')
    os.wait()
print(json.dumps(results))
"""

CAUSES = {
    "no torch.compile at all": "(q, k, v), m = tensors()\nresult = outcome(lambda: function(q, k, v, m))",
    "recompile limit": """
config.recompile_limit = 1
f = compiled()
for tokens in (16, 32, 48):
    (q, k, v), m = tensors(tokens)
    result = outcome(lambda: f(q, k, v, m))
""",
    "hidden nested trace": """
config.error_on_nested_fx_trace = False
f = compiled()
(q, k, v), m = tensors()
tracing._is_fx_tracing_flag = True
if hasattr(tracing, "_set_is_fx_tracing"):
    tracing._set_is_fx_tracing(True)
result = outcome(lambda: f(q, k, v, m))
""",
    "stance force_eager": """
torch.compiler.set_stance("force_eager")
(q, k, v), m = tensors()
result = outcome(lambda: compiled(fullgraph=True)(q, k, v, m))
""",
    "stance eager_on_recompile": """
f = compiled(fullgraph=True)
(q, k, v), m = tensors()
outcome(lambda: f(q, k, v, m))
torch.compiler.set_stance("eager_on_recompile")
(q, k, v), m = tensors(32)
result = outcome(lambda: f(q, k, v, m))
""",
    "recompiles forbidden": """
(q, k, v), m = tensors()
torch.compiler.set_stance("fail_on_recompile")
result = outcome(lambda: function(q, k, v, m))
""",
    "suppressed errors": """
config.suppress_errors = True
def backend(graph, inputs):
    raise RuntimeError("this backend fails")
(q, k, v), m = tensors()
result = outcome(lambda: compiled()(q, k, v, m))
""",
    "disabled by setting": """
config.disable = True
(q, k, v), m = tensors()
result = outcome(lambda: compiled(fullgraph=True)(q, k, v, m))
""",
}
"""Each sets ``result``."""

TORCHS_OWN_ERRORS = {
    "nested trace": """
f = compiled()
(q, k, v), m = tensors()
tracing._is_fx_tracing_flag = True
if hasattr(tracing, "_set_is_fx_tracing"):
    tracing._set_is_fx_tracing(True)
result = outcome(lambda: f(q, k, v, m))
""",
    "dispatch mode": """
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, given=(), named=None):
        return function(*given, **(named or {}))
(q, k, v), m = tensors()
with Mode():
    result = outcome(lambda: compiled()(q, k, v, m))
""",
}
"""Causes that torch refuses by itself, before or instead of us; each sets ``result``."""

OFF = "(q, k, v), m = tensors()\nresult = outcome(lambda: compiled()(q, k, v, m))"
SOUND = "(q, k, v), m = tensors()\nresult = outcome(lambda: compiled(fullgraph=True)(q, k, v, m))"
WITHOUT = "dense.remove_tripwire()\n" + CAUSES["stance force_eager"]

BACKWARD = """
torch.set_grad_enabled(True)
sys.modules["torch.nn.attention.flex_attention"]._validate_device = lambda *given: None  # hides a dense CPU backward
dense.remove_tripwire()
(q, k, v), m = tensors()
out = flex_attention(*[each.requires_grad_() for each in (q, k, v)], block_mask=m).sum()
result = [outcome(lambda: out.backward(retain_graph=True)), q.grad is not None]
dense.install_tripwire()
q.grad = None
result += [outcome(lambda: out.backward()), q.grad is not None]
"""

INDUCTOR = """
(q, k, v), m = tensors(64)
dense.install_tripwire()
out = torch.compile(function, fullgraph=True, dynamic=False)(q, k, v, m)
dense.remove_tripwire()
exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
result = bool(torch.allclose(out, exact, atol=1e-5))
"""

WHO = ("ours", "theirs")


def run_cases(cases: list[tuple[str, str, str]], **environ: str) -> dict[str, object]:
    """ "name, who" -> what its code left in ``result``."""
    done = subprocess.run(
        [sys.executable, "-c", COMMON, json.dumps(cases)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.slow
def test_every_fallback_is_refused() -> None:
    cases = [(name, who, code) for name, code in CAUSES.items() for who in WHO]
    assert run_cases(cases) == {f"{name}, {who}": "refused" for name, who, _ in cases}


@pytest.mark.slow
def test_what_torch_refuses_by_itself_never_runs_either() -> None:
    cases = [(name, who, code) for name, code in TORCHS_OWN_ERRORS.items() for who in WHO]
    results = run_cases(cases)
    assert {name: str(result).partition(":")[0] for name, result in results.items()} == {
        "nested trace, ours": "RuntimeError",
        "nested trace, theirs": "RuntimeError",
        "dispatch mode, ours": "refused",
        "dispatch mode, theirs": "NotImplementedError",
    }
    assert "symbolically trace a dynamo-optimized function" in str(results["nested trace, ours"])


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_compiling_turned_off_by_a_variable_is_refused(variable: str) -> None:
    results = run_cases([(variable, who, OFF) for who in WHO], **{variable: "1"})
    assert set(results.values()) == {"refused"}


@pytest.mark.slow
def test_compiled_calls_run_the_backward_is_refused_and_the_cases_above_can_fail() -> None:
    results = run_cases(
        [
            ("compiled", "ours", SOUND),
            ("compiled", "theirs", SOUND),
            ("no tripwire", "theirs", WITHOUT),
            ("backward", "ours", BACKWARD),
            ("inductor", "ours", INDUCTOR),
            ("inductor", "theirs", INDUCTOR),
        ],
        TORCHINDUCTOR_VEC_ISA_OK="1",
    )
    assert results == {
        "compiled, ours": "ran",
        "compiled, theirs": "ran",
        "no tripwire, theirs": "ran",
        "backward, ours": ["ran", True, "refused", False],
        "inductor, ours": True,
        "inductor, theirs": True,
    }


def test_the_refusal_names_the_size_and_the_remedy() -> None:
    import torch

    from dflash.compile.dense import DenseAttentionError, _refusal

    q = torch.empty(2, 16, 65536, 1, device="meta")
    with pytest.raises(DenseAttentionError, match=r"scores \[2, 16, 65536, 131072\] \(1024.0 GiB\).*dflash preflight"):
        _refusal("flex_attention")(q, torch.empty(2, 4, 131072, 1, device="meta"))


def test_the_tripwire_can_be_set_twice_and_removed() -> None:
    from dflash.compile import dense

    dense.install_tripwire()
    dense.install_tripwire()
    assert dense.tripwire_installed()
    dense.remove_tripwire()
    assert not dense.tripwire_installed()
    dense.remove_tripwire()
