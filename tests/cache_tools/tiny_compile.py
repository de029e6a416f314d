"""Compile one small function, forward and backward, and print torch's counters and the results."""

import json

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

torch._inductor.config.cpp_cache_precompile_headers = False  # 118 MB and 30 s


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w).softmax(-1).square().sum()


torch.manual_seed(0)
x, w = torch.randn(32, 32), torch.randn(32, 32, requires_grad=True)
loss = torch.compile(function)(x, w)
loss.backward()
aot = counters["aot_autograd"]
print(
    json.dumps(
        {
            "hits": aot["autograd_cache_hit"],
            "misses": aot["autograd_cache_miss"] + aot["autograd_cache_bypass"],
            "fx_misses": counters["inductor"]["fxgraph_cache_miss"],
            "loss": loss.item(),
            "grad": w.grad.sum().item(),
        }
    )
)
