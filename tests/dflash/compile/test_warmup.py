"""Warm-up: each graph once, with what it cost and where it came from; ranks share one cache; training needs no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from dflash.anchors import choose_anchors, make_batch
from dflash.compile import policy, warmup
from dflash.compile.account import CompileWatch
from dflash.compile.compiled import RecompileError, compile_function
from dflash.compile.ranks import first_rank_first, see_own_gpu
from dflash.compile.warmup import Graph, Warmed, warm_up
from dflash.errors import ConfigError
from dflash.step import drafter_step
from tests.dflash.helpers import MASK, plan_of, random_document, row_of, tiny_drafter, tiny_shape, tiny_target

ROOT = Path(__file__).parents[3]


def test_graphs_run_once_in_order_and_a_stall_is_told(tmp_path: Path) -> None:
    ran: list[str] = []
    graphs = [Graph(name=name, run=lambda name=name: ran.append(name)) for name in ("mask", "step")]
    warmed = warm_up(graphs, CompileWatch(tmp_path))
    assert ran == ["mask", "step"]
    assert [(graph.name, graph.hits, graph.misses) for graph in warmed] == [("mask", 0, 0), ("step", 0, 0)]
    assert warmed[0].text().startswith("graph mask: nothing was compiled, 0.")


def test_no_graphs_are_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warm_up([], CompileWatch(tmp_path)) == ()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("graphs", "hits", "misses", "builds", "told"),
    [
        (1, 1, 0, 0, "from the cache, 2.0 s"),
        (1, 1, 0, 3, "from the cache, but for 3 C++ builds, 2.0 s"),
        (1, 0, 1, 3, "compiled, 2.0 s"),
        (1, 0, 0, 3, "compiled without torch's cache, which is off, 2.0 s"),
        (0, 0, 0, 0, "nothing was compiled, 2.0 s"),
    ],
)
def test_where_a_graph_came_from_is_told(graphs: int, hits: int, misses: int, builds: int, told: str) -> None:
    graph = Warmed(
        name="step",
        seconds=2.0,
        graphs=graphs,
        hits=hits,
        misses=misses,
        fx_hits=hits,
        fx_misses=misses,
        native_builds=builds,
    )
    assert graph.text() == f"graph step: {told} ({hits} hits, {misses} misses)"


def test_graphs_of_one_name_each_count(tmp_path: Path) -> None:
    import time

    watch = CompileWatch(tmp_path)
    warm_up((Graph(name="step", run=lambda: time.sleep(0.2)) for _ in range(2)), watch)
    assert watch.account().seconds >= 0.4


CACHE_OFF = """
import torch
from pathlib import Path
from dflash.compile.account import CompileWatch
from dflash.compile.compiled import compile_function
from dflash.compile.warmup import Graph, warm_up
torch.compile(lambda x: x - 1, backend="eager")(torch.ones(2))  # as the preflight does
step = compile_function(lambda x: x + 1)
watch = CompileWatch(Path("."))
[first] = warm_up([Graph(name="step", run=lambda: step(torch.ones(3)))], watch)
[again] = warm_up([Graph(name="step", run=lambda: step(torch.ones(3)))], watch)
print(first.text(), "|", again.text(), "|", watch.account().graphs)
"""


@pytest.mark.slow
@pytest.mark.parametrize("off", ["TORCHINDUCTOR_FORCE_DISABLE_CACHES=1", "TORCHINDUCTOR_AUTOGRAD_CACHE=0"])
def test_what_is_compiled_while_torchs_cache_is_off_is_told(off: str) -> None:
    name, _, value = off.partition("=")
    environ = os.environ | {name: value, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CACHE_OFF], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, again, graphs = done.stdout.strip().split(" | ")
    assert first.startswith("graph step: compiled without torch's cache, which is off, ")
    assert again.startswith("graph step: nothing was compiled, ")
    assert graphs == "1"


def test_a_name_like_markup_is_shown_on_a_terminal() -> None:
    from tests.dflash.test_show import on_a_terminal_runs

    code = "from dflash.console import stage\nwith stage('compile [/bold] [b]', steps=1) as advance:\n    advance()"
    returned, shown = on_a_terminal_runs([sys.executable, "-c", code])
    assert returned == 0, shown
    assert "compile [/bold] [b]: 0." in shown


def test_a_graph_that_stalls_is_reported(tmp_path: Path) -> None:
    import time

    stalls: list[str] = []
    slow = Graph(name="step", run=lambda: time.sleep(0.5))
    warm_up([slow], CompileWatch(tmp_path), stall_seconds=0.1, on_stall=lambda message, stacks: stalls.append(message))
    assert len(stalls) == 1
    assert "compiling graph step: no progress for 0.1 s" in stalls[0]


def test_a_graph_that_raises_is_named_and_ends_the_warm_up(tmp_path: Path) -> None:
    ran: list[str] = []

    def fails() -> None:
        raise ValueError("own")

    graphs = [
        Graph(name="mask", run=lambda: ran.append("mask")),
        Graph(name="step", run=fails),
        Graph(name="last", run=lambda: ran.append("last")),
    ]
    with pytest.raises(ValueError, match="own") as raised:
        warm_up(graphs, CompileWatch(tmp_path))
    assert ran == ["mask"]
    assert raised.value.__notes__ == ["while graph step was compiled, 2 of 3"]


# Ranks

RANK = """
import json, os, sys
from dflash.compile import policy
policy.prepare_environment()
import torch, torch.distributed as dist
policy.apply()
from dflash.compile.account import CompileWatch
from dflash.compile.compiled import compile_function
from dflash.compile.ranks import first_rank_first
from dflash.compile.warmup import Graph, warm_up
from pathlib import Path

rank, world = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world)
linear = torch.nn.Linear(8, 8)
step = compile_function(lambda x: torch.nn.functional.gelu(linear(x)).square().sum())

def run():
    step(torch.ones(4, 8)).backward()

with first_rank_first(rank, dist.barrier):
    [graph] = warm_up([Graph(name="step", run=run)], CompileWatch(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])))
dist.barrier()
dist.destroy_process_group()
from torch._inductor.async_compile import AsyncCompile
pools, threads = AsyncCompile.process_pool.cache_info().currsize, torch._inductor.config.compile_threads
print(json.dumps({"hits": graph.hits, "misses": graph.misses, "fx_misses": graph.fx_misses, "pools": pools}))
assert threads == 2, threads
"""


@pytest.mark.slow
def test_four_processes_compile_once(tmp_path: Path) -> None:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), "4", str(tmp_path / "rendezvous")],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    ended = [(*process.communicate(timeout=600), process.returncode) for process in ranks]
    assert [code for _, _, code in ended] == [0] * 4, [err for _, err, _ in ended]
    first, *others = [json.loads(out.splitlines()[-1]) for out, _, _ in ended]
    assert first == {"hits": 0, "misses": 1, "fx_misses": 2, "pools": 1}
    assert others == [{"hits": 1, "misses": 0, "fx_misses": 0, "pools": 0}] * 3


def test_rank_0_goes_first_and_each_rank_meets_the_barrier_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor, "compile_threads", inductor.compile_threads)  # ranks are no threads: they share it
    barrier = threading.Barrier(3)
    order: list[int] = []

    def work(rank: int) -> None:
        with first_rank_first(rank, lambda: barrier.wait(10)):
            order.append(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2]


def test_a_failure_of_rank_0_does_not_let_the_others_through() -> None:
    met: list[int] = []
    with pytest.raises(ValueError, match="rank 0"), first_rank_first(0, lambda: met.append(0)):
        raise ValueError("rank 0 cannot compile")
    assert met == []


@pytest.mark.parametrize(
    ("given", "rank", "own"),
    [(None, 3, "3"), ("4,5,6", 1, "5"), ("GPU-a, GPU-b", 1, "GPU-b"), ("6,", 0, "6"), ("5,-1", 0, "5")],
)
def test_a_rank_sees_only_its_own_gpu(given: str | None, rank: int, own: str) -> None:
    environ = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    assert see_own_gpu(rank, environ) == own
    assert environ == {"CUDA_VISIBLE_DEVICES": own}


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}])
@pytest.mark.parametrize("rank", [-1, "0", None, 1.0, True])
def test_what_is_no_rank_is_refused(environ: dict[str, str], rank: object) -> None:
    """-1 would name the last GPU, or, as CUDA_VISIBLE_DEVICES=-1, hide all of them; "0" is what a variable holds."""
    before, met = dict(environ), list[int]()
    with pytest.raises(ConfigError, match=rf"see_own_gpu: got rank {rank!r}, .*LOCAL_RANK"):
        see_own_gpu(cast(int, rank), environ)
    assert environ == before
    with (
        pytest.raises(ConfigError, match=rf"first_rank_first: got rank {rank!r}, .*\"RANK"),
        first_rank_first(cast(int, rank), lambda: met.append(1)),
    ):
        met.append(2)
    assert met == []


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0"])
def test_gpus_that_are_hidden_stay_hidden(hidden: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": hidden}
    with pytest.raises(ConfigError, match="0 GPUs, and local rank 0"):
        see_own_gpu(0, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": hidden}


def test_a_rank_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=0,1,-1,2: 2 GPUs, and local rank 2"):
        see_own_gpu(2, {"CUDA_VISIBLE_DEVICES": "0,1,-1,2"})


# Shapes by construction


def test_two_hundred_steps_of_other_data_compile_nothing() -> None:
    """Warmed on two long documents with every slot used; then any lengths, counts and anchors of the same budget."""
    torch._dynamo.reset()
    target, shape = tiny_target(), tiny_shape()
    drafter = tiny_drafter(shape)
    step = compile_function(drafter_step, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    slots = 6

    def run(lengths: list[int], seed: int, tokens: int = 48) -> int:
        prompts = [max(1, length - 2 - (seed + i) % 4) for i, length in enumerate(lengths)]
        documents = [random_document(*each, seed) for each in zip(lengths, prompts, strict=True)]
        row = row_of(*documents, row_tokens=tokens)
        drawn = choose_anchors(row, slots, generator)
        batch = make_batch([row], [drawn], block_size=shape.block_size, mask_token_id=MASK, gamma=4.0)
        features = torch.randn(1, tokens, len(shape.target_layer_ids) * shape.target_hidden_size, generator=generator)
        output = step(
            drafter,
            target.embedding_weight,
            target.head_weight,
            features,
            batch.positions,
            batch.block_tokens,
            batch.block_positions,
            batch.labels,
            batch.weights,
            plan_of(batch, shape.block_size),
        )
        output.loss.backward()
        for parameter in drafter.parameters():
            parameter.grad = None
        return int(drawn[1].sum())

    run([24, 24], seed=0)
    policy.forbid_recompiles()
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    counts = set()
    for number in range(200):
        cuts = sorted(torch.randint(4, 44, (number % 5,), generator=generator).tolist())
        lengths = [after - before for before, after in pairwise([0, *cuts, 45 + number % 4]) if after - before >= 4]
        counts.add(run(lengths, seed=number))
    assert len(counts) >= 3  # the data did vary
    assert counters["stats"]["unique_graphs"] == graphs
    with pytest.raises(RecompileError, match="size mismatch"):  # and another budget would have been noticed
        run([24, 24], seed=0, tokens=52)


def test_the_optimizer_is_not_compiled() -> None:
    """What warm-up leaves out on purpose: were it compiled, it would need graphs of its own."""
    from dflash.config import OptimConfig
    from dflash.optim import MasterAdamW

    linear = nn.Linear(2, 2)
    optimizer = MasterAdamW(linear.named_parameters(), OptimConfig())
    linear(torch.ones(1, 2)).sum().backward()
    before = counters["stats"]["unique_graphs"]
    optimizer.step(1e-3)
    assert counters["stats"]["unique_graphs"] == before


def test_flex_attention_is_refused_where_it_would_not_be_compiled() -> None:
    from dflash.config import CompileConfig, Config, DataConfig
    from dflash.train import attention_kind

    config = Config(data=DataConfig(path="x"))
    eager = config.model_copy(update={"compile": CompileConfig(enabled=False)})
    assert attention_kind(config, torch.device("cuda")) == "flex"
    assert attention_kind(eager, torch.device("cpu")) == "sdpa"
    with pytest.raises(ConfigError, match=r"compile\.enabled = false with flex attention, which is dense"):
        attention_kind(eager, torch.device("cuda"))


@pytest.mark.parametrize("graphs", [[5], Graph(name="a", run=lambda: None), None])
def test_only_graphs_are_warmed_and_one_alone_will_do(
    graphs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "start_compiler", lambda: None)  # no pool of processes in the tests' own
    watch = CompileWatch(cast(Path, str(tmp_path)))  # as a string, as most write it
    if isinstance(graphs, Graph):
        assert [warmed.name for warmed in warm_up(graphs, watch)] == [graphs.name]
    else:
        with pytest.raises(ConfigError, match=r"warm_up: got (5|None), allowed are Graphs"):
            warm_up(graphs, watch)


def test_a_graph_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="Graph a: got run=None"):
        Graph(name="a", run=cast(Any, None))
