"""Make torch and triton write every kind of file that they write without a GPU, and print where the autotuner's is.

The environment sets ``TORCH_COMPILE_JOB_ID`` (a profile), ``TORCH_CACHING_PRECOMPILE`` (packages) and the directory.
"""

import os
from pathlib import Path

import torch
import torch._dynamo
import torch._inductor.config as config
import triton
import triton.language as tl
from torch._dynamo.precompile_context import PrecompileContext
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

config.cpp_cache_precompile_headers = False
os.environ["TRITON_CACHE_DIR"] = triton_cache_dir(0)  # as inductor sets it


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + index, tl.load(x + index, mask=index < n) + 1, mask=index < n)


signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
triton.compile(ASTSource(fn=add_one, signature=signature, constexprs={"BLOCK": 128}), target=GPUTarget("cuda", 90, 32))

linear = torch.nn.Linear(32, 32).eval()
with config.patch(max_autotune=True, freezing=True), torch.no_grad():
    torch.compile(linear)(torch.randn(64, 32))  # times its C++ matrix product against others

double = torch.compile(lambda x: x.sin() * 2, dynamic=None)
for length in (8, 9):  # the second length makes a profile
    double(torch.randn(length))
PrecompileContext.save_to_dynamo_cache()

module = next(path for path in Path(cache_dir()).glob("??/*.py"))
meta = {"autotune_local_cache": True, "autotune_remote_cache": False, "bundled_autotune_remote_cache": False}
autotuned = AutotuneCache.create(meta | {"is_fbcode": False, "backend_hash": "0"}, str(module), "configs")
autotuned.save(triton.Config({"XBLOCK": 64}, num_warps=4, num_stages=1), 10)
