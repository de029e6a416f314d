"""AdamW on float32 masters, and the learning-rate schedule as a pure function of the step.

In: the drafter's parameters and their gradients. Out: updated parameters. Working weights may be bfloat16: pure
bfloat16 AdamW at 6e-4 gives NaN after a few hundred steps (z-lab/dflash issue 115), so every update is made on float32
masters and copied back. Where the working weights are float32 they are the masters; nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dflash.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, num_steps: int) -> float:
    """Rate of 0-based ``step``: linear over ``warmup_ratio`` of the steps, then a cosine to ``min_lr_ratio``."""
    warmup = max(1, round(config.warmup_ratio * num_steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    floor = config.min_lr_ratio
    return config.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class MasterAdamW:
    """torch's AdamW over float32 masters of named parameters."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], config: OptimConfig) -> None:
        self.config = config
        self.working = dict(named)
        self.masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())
            for name, p in self.working.items()
        }
        self.adamw = torch.optim.AdamW(
            self.masters.values(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
        )

    def step(self, lr: float) -> Tensor:
        """Clip, update, clear gradients.

        Returns:
            [] float32, the global gradient norm before clipping.
        """
        for name, parameter in self.working.items():
            master = self.masters[name]
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        norm = nn.utils.clip_grad_norm_(self.masters.values(), self.config.clip_norm)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        for name, parameter in self.working.items():
            parameter.grad = None
            master = self.masters[name]
            if master is not parameter:
                master.grad = None
                with torch.no_grad():
                    parameter.copy_(master)
        return norm

    def state_tensors(self) -> dict[str, Tensor]:
        """Masters and both moments by name: ``master.X``, ``exp_avg.X``, ``exp_avg_sq.X``, and ``steps``."""
        tensors = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            state = self.adamw.state[master]
            for moment in ("exp_avg", "exp_avg_sq"):
                tensors[f"{moment}.{name}"] = state[moment] if state else torch.zeros_like(master)
            tensors["steps"] = state["step"] if state else torch.tensor(0.0)
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of ``state_tensors``; working weights follow the masters.

        Raises:
            KeyError: a tensor is missing.
        """
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(tensors[f"master.{name}"])
                if master is not self.working[name]:
                    self.working[name].copy_(master)
                self.adamw.state[master] = {
                    "step": tensors["steps"].clone().cpu(),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(master.device).clone(),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(master.device).clone(),
                }
