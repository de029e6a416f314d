"""Torch's settings, stance, frame override and tripwire are the process's: every test leaves them as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dflash.compile import dense, policy
from dflash.compile.policy import POLICY, Line, Policy


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    found = Policy(
        lines=tuple(
            Line(module=line.module, name=line.name, value=value, reason="found", torch="")
            for line in POLICY.lines
            if (value := line.now()) is not None
        )
    )
    yield
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_eval_frame_override"):  # 2.15 has none; overlapping calls of two threads leave it set
        frames.set_eval_frame_override(frames._EvalFrameOverride.NONE)
    policy.allow_recompiles()
    dense.remove_tripwire()
    for line in found.lines:
        line.put()


@pytest.fixture
def policy_in_force() -> None:
    """As in a process of ours after its imports."""
    policy.apply()
    dense.install_tripwire()
