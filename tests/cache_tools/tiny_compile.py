"""Compile one small function, forward and backward, and print torch's counters, the results and what was looked up.

The one argument is a JSON object: ``session`` (arguments of ``cache_tools.restored``), ``run`` (a directory for
``cache_keys.json``), ``autocast`` (a dtype), ``inductor`` (options), ``size``, ``product`` (a second graph), ``early``
(a module of the program imports torch before all others), ``stable`` (``cache_tools.stable_keys``).
"""

import contextlib
import json
import sys
import types
from pathlib import Path

import cache_tools
from cache_tools import records
from cache_tools.paths import default_cache_dir
from cache_tools.stats import saved_seconds
from cache_tools.told import tell
from cache_tools.trace import CacheTrace
from cache_tools.used import used_entries
from envguard.frozen import as_dict

asked = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
result = {}


def compiled():
    early = types.ModuleType("early")
    if asked.get("early"):
        sys.modules["early"] = early
    import torch
    import torch._dynamo
    import torch._inductor.config
    from torch._dynamo.utils import counters

    early.torch = torch
    if asked.get("stable"):
        cache_tools.stable_keys()
    torch._inductor.config.cpp_cache_precompile_headers = False  # 118 MB and 30 s
    for name, value in asked.get("inductor", {}).items():
        setattr(torch._inductor.config, name, value)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w).softmax(-1).square()

    size = asked.get("size", 32)
    torch.manual_seed(0)
    x, w = torch.randn(size, size), torch.randn(size, size, requires_grad=True)
    dtype = asked.get("autocast")
    with torch.autocast("cpu", getattr(torch, dtype)) if dtype else contextlib.nullcontext():
        out = torch.compile(function)(x, w)
    out.float().sum().backward()
    product = torch.compile(lambda a, b: a @ b)
    with torch.autocast("cpu", getattr(torch, dtype)) if dtype else contextlib.nullcontext():
        dtype_of_product = str(product(x, w.detach()).dtype) if asked.get("product") else None
    aot = counters["aot_autograd"]
    result.update(
        hits=aot["autograd_cache_hit"],
        misses=aot["autograd_cache_miss"] + aot["autograd_cache_bypass"],
        fx_hits=counters["inductor"]["fxgraph_cache_hit"],
        fx_misses=counters["inductor"]["fxgraph_cache_miss"],
        loss=out.sum().item(),
        grad=w.grad.sum().item(),
        product=dtype_of_product,
    )


if "session" in asked:
    with cache_tools.restored(**asked["session"]) as session:
        assert "torch" not in sys.modules
        compiled()
        result["texts"] = [group.text for group in session.explain().groups]
    result["kept"] = as_dict(session.kept) if session.kept else None
    result["restored"] = session.restored is not None
    trace = session.trace
else:
    cache = default_cache_dir()
    present = records.keys_present(cache)
    with CacheTrace() as trace:
        compiled()
    if "run" in asked:
        run = Path(asked["run"])
        run.mkdir(parents=True, exist_ok=True)
        records.keep_in_cache(cache, trace.lookups)
        used = records.sizes_of(cache, used_entries(cache))
        keys = records.RunKeys(
            cache_dir=cache, compile_id=None, present=present, lookups=tuple(trace.lookups), used=used
        )
        records.write_run(run, keys)
result["lookups"] = [[one.cache, one.outcome, one.key, one.autocast, len(one.components)] for one in trace.lookups]
result["told"] = tell(one.autocast for one in trace.lookups)
result["saved"] = saved_seconds(tuple(trace.lookups))
print(json.dumps(result))
