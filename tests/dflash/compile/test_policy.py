"""The policy: in force where it was applied, room for every graph, one reason a line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
import torch
import torch._dynamo

from dflash.compile import policy
from dflash.compile.policy import POLICY, PolicyThread
from dflash.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_a_fresh_process_lacks_what_the_policy_sets_and_has_it_after_apply() -> None:
    code = (
        "from dflash.compile import policy\n"
        "before = {line.name for line in policy.POLICY.broken()}\n"
        "policy.apply()\n"
        "print(sorted(before), policy.POLICY.broken())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = sorted({line.name for line in POLICY.lines} - {"accumulated_recompile_limit"})  # torch's own is enough
    assert done.stdout.strip() == f"{missing} ()"


def test_a_cache_directory_that_torch_cannot_make_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "inductor"
    code = (
        "from dflash.cli.entry import run\n"
        "from dflash.compile import policy\n"
        "run('dflash', lambda _: policy.apply(), [])"
    )
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(place)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    advice = "set TORCHINDUCTOR_CACHE_DIR to a directory that can be written"
    assert done.stderr == f"error: torch cannot make its cache directory '{place}' (Not a directory): {advice}\n"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TORCHINDUCTOR_COMPILE_THREADS", "banana", "invalid literal for int() with base 10: 'banana'"),
        ("TORCH_LOGS", "nonsense", "Invalid log settings: nonsense, must be a comma separated list"),
    ],
)
def test_a_variable_that_torch_refuses_is_named(variable: str, value: str, words: str) -> None:
    code = (
        "from dflash.cli.entry import run\n"
        "from dflash.compile import policy\n"
        "sys.exit(run('dflash', lambda _: policy.apply(), []))"
    )
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {variable: value}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: torch does not start with {variable}={value} ({words}")
    assert line.endswith("): correct it, or unset it")


@pytest.mark.parametrize("graphs", [-1, 2.5, float("inf"), "7"])
def test_a_room_that_is_no_number_of_graphs_is_refused(graphs: object) -> None:
    with pytest.raises(ConfigError, match=r"with_room: got .* graphs, allowed are whole numbers from 0"):
        POLICY.with_room(cast(int, graphs))


def test_threads_that_apply_have_every_line() -> None:
    policy.apply()
    seen: list[object] = []
    thread = PolicyThread(target=lambda: seen.append(POLICY.broken()))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(2, initializer=policy.apply) as pool:
        seen += list(pool.map(lambda _: POLICY.broken(), range(4)))
    assert seen == [()] * 5


def test_a_setting_of_one_thread_reaches_another_as_this_torch_has_it() -> None:
    """What makes ``PolicyThread`` needed: the same question that the preflight's CMP020 asks."""
    from dflash.compile.behaviour import _settings_in_a_thread

    torch._dynamo.config.recompile_limit = 4242
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch._dynamo.config.recompile_limit))
    thread.start()
    thread.join()
    assert (seen == [4242]) != _settings_in_a_thread(POLICY).present


def test_limits_grow_with_the_graphs_and_never_shrink() -> None:
    grown = POLICY.with_room(1000)
    policy.apply(grown)
    assert torch._dynamo.config.recompile_limit == 1000
    assert torch._dynamo.config.accumulated_recompile_limit == 1000
    assert POLICY.with_room(2) == POLICY
    policy.apply()
    assert torch._dynamo.config.recompile_limit == 1000


def test_values_in_the_cache_keys_are_what_they_always_were() -> None:
    """Inductor's and functorch's settings are hashed into every cache entry: another value makes every cache miss."""
    keyed = {line.name: line.value for line in POLICY.lines if "dynamo" not in line.module}
    assert keyed == {"cpp_cache_precompile_headers": False, "force_non_lazy_backward_lowering": True}


def test_each_line_has_a_reason_and_its_releases() -> None:
    for record in policy.as_record(POLICY):
        assert record["setting"].startswith("torch._")
        assert record["reason"]
        assert record["torch"]


def test_a_setting_that_this_torch_does_not_know_is_left_out() -> None:
    line = policy.Line(module="torch._dynamo.config", name="of_another_torch", value=True, reason="r", torch="none")
    unknown = policy.Policy(lines=(line,))
    assert unknown.broken() == ()
    unknown.apply()
    assert not hasattr(torch._dynamo.config, "of_another_torch")


FIRST_TOGETHER = """
import sys, threading
from dflash.compile.policy import PolicyThread
import torch.fx._symbolic_trace as tracing
from torch._inductor.loop_body import InterpreterShim

sys.setswitchinterval(1e-5)
failed, start = [], threading.Barrier(4)
threading.excepthook = lambda args: failed.append(repr(args.exc_value))

class Together(PolicyThread):
    def run(self):
        start.wait()
        super().run()

for _ in range(60):
    InterpreterShim._dummy_gm.cache_clear()
    threads = [Together(target=int) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(failed, tracing.is_fx_symbolic_tracing(), tracing.CURRENT_PATCHER)
"""


def test_threads_that_apply_it_first_and_together_leave_no_trace_open() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_TOGETHER], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False None"


def test_a_thread_can_have_a_policy_with_more_room() -> None:
    seen: list[int] = []
    thread = PolicyThread(target=lambda: seen.append(torch._dynamo.config.recompile_limit))
    thread.policy = POLICY.with_room(777)
    thread.start()
    thread.join()
    assert seen == [777]


ONE_AFTER_THE_OTHER = """
import threading
from dflash.compile import policy
import torch
policy.apply()

def compile_one(number):
    policy.apply()
    torch.compile(lambda x: x * number, backend="aot_eager", fullgraph=True)(torch.ones(3))

for number in range(3):
    thread = threading.Thread(target=compile_one, args=(number,))
    thread.start()
    thread.join()
print("done")
"""


@pytest.mark.slow
def test_threads_that_compile_one_after_the_other_do_not_crash() -> None:
    """A CUDA build of torch 2.11 without a GPU: the second compile met what the first thread took along at its end."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
