"""Training: build the parts, then one straight loop.

In: a configuration, an owned run directory, the prepared parts. Out: checkpoints and ``metrics.jsonl``. The guard, the
cache restore and the run directory come before (``launch.py``), because this module imports torch.
Step s is a pure function of the state after s steps and of (seed, s), so a resumed run equals an unbroken one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.anchors import default_gamma
from dflash.attention import AttentionPlan, Kind, default_kind, make_block_mask, make_dense_plan
from dflash.batch import Batch, StepOutput
from dflash.checkpoint import Checkpoint, save_checkpoint
from dflash.compile.compiled import compile_function
from dflash.compile.kernels import TORCHS_OWN, KernelChoice
from dflash.compile.shapes import GraphSpec, needed_graphs
from dflash.compile.warmup import Graph
from dflash.config import Config
from dflash.console import say
from dflash.data import Schedule, count_anchors, pack
from dflash.devices import pick_device, target_dtype
from dflash.drafter import Drafter, DrafterShape, target_layer_ids
from dflash.errors import ConfigError, InputError, Interrupted, RunError
from dflash.features import CachedFeatures, FeatureSource, OnlineFeatures, build_cache, cache_key
from dflash.interrupts import stop_signals
from dflash.metrics import StepCounts, count_step
from dflash.optim import MasterAdamW, learning_rate
from dflash.paths import features_dir
from dflash.prepare import Document, Prepared, read_prepared
from dflash.progress import StepLine, progress_bar
from dflash.runs.record import RunDirectory
from dflash.step import drafter_step
from dflash.target import Target, load_target, locate_target


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Everything the loop uses, built once."""

    config: Config
    device: torch.device
    target: Target
    prepared: Prepared
    schedule: Schedule
    source: FeatureSource
    drafter: Drafter
    optimizer: MasterAdamW
    attention: Kind
    plan: Callable[[Batch], AttentionPlan]
    step: Callable[..., StepOutput]
    kernel: KernelChoice = TORCHS_OWN
    """Flex attention's kernel options, found by the warm-up."""

    def forward(self, batch: Batch, features: Tensor) -> StepOutput:
        """The compiled step on one batch; the only call of it, in warm-up and in training."""
        return self.step(
            self.drafter,
            self.target.embedding_weight,
            self.target.head_weight,
            features,
            batch.positions,
            batch.block_tokens,
            batch.block_positions,
            batch.labels,
            batch.weights,
            replace(self.plan(batch), kernel_options=self.kernel.as_dict()),
        )


def build(config: Config) -> Training:
    """Load target and data, make drafter, optimizer and feature source.

    Raises:
        InputError, ConfigError, RunError: what the user gave does not fit together, or the disk is too small.
    """
    device = pick_device(config.run.device)
    prepared, documents = read_documents(config)
    files = locate_target(config.target.model)
    target = load_target(files, device=device, dtype=target_dtype(config.target.dtype, device))
    _check_fit(config, target, prepared)
    rows, left_out = pack(documents, config.data.row_tokens)
    if not count_anchors(rows):
        raise InputError(f"{config.data.path}: no token can be an anchor: no two supervised tokens stand side by side")
    say(
        f"data: {len(documents)} documents in {len(rows)} rows of {config.data.row_tokens} tokens, "
        f"{count_anchors(rows)} possible anchors; {prepared.skipped_short + left_out} samples left out as too short"
    )
    shape = drafter_shape(config, target.config, target.vocab_size)
    torch.manual_seed(config.run.seed)
    drafter = Drafter(shape)
    drafter.reset_parameters(torch.Generator().manual_seed(config.run.seed))
    drafter.to(device=device, dtype=target_dtype(config.drafter.dtype, device))
    compiled = _compiler(config.compile.enabled)
    kind = attention_kind(config, device)
    return Training(
        config=config,
        device=device,
        target=target,
        prepared=prepared,
        schedule=Schedule(
            rows=rows,
            seed=config.run.seed,
            rows_per_step=config.data.rows_per_step,
            anchors_per_row=config.data.anchors_per_row,
            block_size=shape.block_size,
            mask_token_id=shape.mask_token_id,
            gamma=config.loss.gamma or default_gamma(shape.block_size),
        ),
        source=_feature_source(config, target, rows, shape.target_layer_ids),
        drafter=drafter,
        optimizer=MasterAdamW(drafter.named_parameters(), config.optim),
        attention=kind,
        plan=_planner(kind, shape.block_size, compiled),
        step=compiled(drafter_step),
    )


def attention_kind(config: Config, device: torch.device) -> Kind:
    """The configured kind, or the device's default.

    Raises:
        ConfigError: flex attention where it cannot run.
    """
    kind = default_kind(device) if config.drafter.attention == "auto" else config.drafter.attention
    if kind == "flex" and device.type == "cpu":
        raise ConfigError(
            "drafter.attention = 'flex' on a CPU: flex attention has no CPU backward in torch 2.11; use sdpa"
        )
    if kind == "flex" and not config.compile.enabled:
        raise ConfigError(
            "compile.enabled = false with flex attention, which is dense unless it is compiled: "
            "set drafter.attention = 'sdpa', or compile.enabled = true"
        )
    return kind


def read_documents(config: Config) -> tuple[Prepared, list[Document]]:
    """The prepared data set, cut to ``data.max_documents``; raises as ``read_prepared``."""
    prepared, documents = read_prepared(Path(config.data.path))
    return prepared, documents[: config.data.max_documents or None]


def drafter_shape(config: Config, wanted: Any, vocab_size: int) -> DrafterShape:
    """The drafter that fits the target: its configuration's width, heads and RoPE, the configured depth and block."""
    rope = wanted.rope_parameters
    head_dim = getattr(wanted, "head_dim", None) or wanted.hidden_size // wanted.num_attention_heads
    try:
        taps = target_layer_ids(wanted.num_hidden_layers, config.target.num_taps)
    except ValueError as error:
        raise ConfigError(f"target.num_taps = {config.target.num_taps}: {error}") from None
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"target {config.target.model}: RoPE {rope} is not supported yet; allowed: plain rotary")
    return DrafterShape(
        num_layers=config.drafter.num_layers,
        block_size=config.drafter.block_size,
        mask_token_id=config.drafter.mask_token_id,
        target_layer_ids=taps,
        num_target_layers=wanted.num_hidden_layers,
        target_hidden_size=wanted.hidden_size,
        hidden_size=wanted.hidden_size,
        intermediate_size=config.drafter.intermediate_size or wanted.intermediate_size,
        num_attention_heads=wanted.num_attention_heads,
        num_key_value_heads=wanted.num_key_value_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        rope_theta=float(rope["rope_theta"]),
        rms_norm_eps=wanted.rms_norm_eps,
        max_position_embeddings=wanted.max_position_embeddings,
    )


def _check_fit(config: Config, target: Target, prepared: Prepared) -> None:
    if prepared.target_fingerprint != target.files.fingerprint:
        raise InputError(
            f"{config.data.path}: prepared for another target (fingerprint {prepared.target_fingerprint[:12]}, "
            f"target.model has {target.files.fingerprint[:12]}); prepare it again with this target"
        )
    if prepared.max_token_id >= target.vocab_size:
        raise InputError(
            f"{config.data.path}: token id {prepared.max_token_id} is outside the target's "
            f"vocabulary of {target.vocab_size}"
        )
    mask = config.drafter.mask_token_id
    if mask >= target.vocab_size:
        raise ConfigError(f"drafter.mask_token_id = {mask} is outside the target's vocabulary of {target.vocab_size}")


def _feature_source(config: Config, target: Target, rows: list[Any], layer_ids: tuple[int, ...]) -> FeatureSource:
    if any((row.tokens == config.drafter.mask_token_id).any() for row in rows):
        raise ConfigError(
            f"drafter.mask_token_id = {config.drafter.mask_token_id} occurs in {config.data.path}; "
            f"choose an id that it never uses"
        )
    if config.target.features == "online":
        return OnlineFeatures(target, layer_ids)
    root = Path(config.target.feature_cache) if config.target.feature_cache else features_dir()
    directory = root / cache_key(target.files.fingerprint, rows, layer_ids, target.embedding_weight.dtype)
    cached: CachedFeatures = build_cache(target, rows, layer_ids, directory)
    return cached


def _compiler(enabled: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if not enabled:
        say("warning: compile.enabled = false: every step runs eagerly, several times slower")
        return lambda function: function
    return compile_function


def _planner(
    kind: Kind, block_size: int, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[Batch], AttentionPlan]:
    if kind == "sdpa":
        return lambda batch: make_dense_plan(batch.documents, batch.anchors, batch.anchor_valid, block_size)
    make = compiled(make_block_mask)
    return lambda batch: AttentionPlan("flex", make(batch.documents, batch.anchors, batch.anchor_valid, block_size))


def graph_specs(training: Training) -> tuple[GraphSpec, ...]:
    """Every graph of this training, as the configuration has them."""
    return needed_graphs(training.config, [training.device.type], attention=training.attention)


def graphs(training: Training) -> list[Graph]:
    """What ``warm_up`` has to run for ``graph_specs``: the calls of training on its first batch, gradients cleared."""

    def mask() -> None:
        training.plan(training.schedule.batch(0).to(training.device))

    def step() -> None:
        batch = training.schedule.batch(0).to(training.device)
        output = training.forward(batch, training.source.features(batch))
        output.loss.backward()
        for parameter in training.drafter.parameters():
            parameter.grad = None
        if training.device.type == "cuda":
            torch.cuda.synchronize()

    runs = {"block mask": mask, "drafter step": step}
    return [Graph(name=spec.name, run=runs[spec.function]) for spec in graph_specs(training)]


def last_step(config: Config, *, first: int, max_steps: int | None) -> int:
    """Where a run that has done ``first`` steps is to stop.

    Raises:
        ConfigError: it is past that step.
    """
    last = min(config.run.steps, max_steps or config.run.steps)
    if last < first:
        raise ConfigError(
            f"the run is at step {first} already, past the last step asked for, {last}; raise --max-steps"
        )
    return last


def train(training: Training, run: RunDirectory, *, first: int, last: int) -> None:
    """The loop: from ``first`` steps done to ``last``.

    Raises:
        RunError: the loss or gradient norm is not finite; no checkpoint holds what the optimizer made of it.
        Interrupted: by a signal of ``ENDING``; the state is saved.
    """
    config = training.config
    line = StepLine(first=first, last=last)
    with stop_signals(run.interrupted) as stop, progress_bar(first, last) as advance:
        for step in range(first, last):
            loss, norm, counts, tokens = train_step(training, step)
            done = step + 1
            if done % config.run.log_every == 0 or done == last:
                values = step_values(training, step, loss, norm, counts) | line.speed(done, tokens)
                run.metric(values)
                advance(done, line.text(values))
            else:
                line.count(tokens)
            if done % config.run.checkpoint_every == 0 or done == last or stop():
                save(training, run, done)
            if stop() and done < last:
                raise Interrupted(f"interrupted after step {done}; go on with --resume")


def train_step(training: Training, step: int) -> tuple[float, float, StepCounts, int]:
    """One optimizer step: loss, gradient norm, counts, and the tokens of the rows (padding left out)."""
    config = training.config
    batch = training.schedule.batch(step).to(training.device)
    features = training.source.features(batch)
    output = training.forward(batch, features)
    loss = output.loss.item()
    if not math.isfinite(loss):
        raise RunError(f"step {step + 1}: the loss is {loss} (rows {batch.rows}); stopped before the optimizer step")
    output.loss.backward()
    norm = training.optimizer.step(learning_rate(config.optim, step, config.run.steps)).item()
    if not math.isfinite(norm):
        raise RunError(f"step {step + 1}: the gradient norm is {norm} (rows {batch.rows}); no checkpoint holds it")
    return loss, norm, count_step(output.correct, batch), int((batch.documents >= 0).sum())


def step_values(training: Training, step: int, loss: float, norm: float, counts: StepCounts) -> dict[str, Any]:
    """The deterministic part of a metrics line."""
    return {
        "step": step + 1,
        "loss": loss,
        "accepted_length": counts.accepted_length,
        "accuracy": counts.accuracy,
        "lr": learning_rate(training.config.optim, step, training.config.run.steps),
        "grad_norm": norm,
        "epoch": round(training.schedule.epoch(step + 1), 4),
    }


def save(training: Training, run: RunDirectory, step: int) -> None:
    """A checkpoint of the state after ``step`` steps, the metrics up to it on the disk before."""
    run.sync_metrics()
    save_checkpoint(
        run.checkpoints,
        step=step,
        drafter=training.drafter,
        optimizer=training.optimizer,
        config=training.config.model_dump(mode="json"),
        target_fingerprint=training.target.files.fingerprint,
        data_digest=training.prepared.digest,
        keep=training.config.run.keep_checkpoints,
    )
    run.saved(step)


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's state into freshly built parts.

    Raises:
        ConfigError: the configuration differs from the checkpoint's in something that would make another run.
        InputError: it belongs to other data or another target.
    """
    if checkpoint.data_digest != training.prepared.digest:
        raise InputError(f"{checkpoint.path}: made with other data than {training.config.data.path}")
    if checkpoint.target_fingerprint != training.target.files.fingerprint:
        raise InputError(f"{checkpoint.path}: made with another target than {training.config.target.model}")
    differing = _differing(checkpoint.config, training.config.model_dump(mode="json"))
    if differing:
        raise ConfigError(f"{checkpoint.path}: cannot resume with another {', '.join(differing)}; start a new run.dir")
    try:
        training.optimizer.load_state_tensors(checkpoint.tensors)
    except (KeyError, RuntimeError) as error:
        raise InputError(f"{checkpoint.path}: its tensors do not fit the drafter: {error}") from None


# Settings that change nothing about the numbers of a step: free to change on resume. A target or data elsewhere are the
# same ones: their fingerprint and digest are compared.
_FREE = {
    "run": {"dir", "checkpoint_every", "keep_checkpoints", "log_every", "profile"},
    "target": {"model", "features", "feature_cache"},
    "data": {"path"},
    "compile": {"snapshot", "store", "stall_seconds"},
}


def _differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [
        f"{section}.{key} (was {old[section][key]!r}, is {value!r})"
        for section, values in new.items()
        for key, value in values.items()
        if key not in _FREE.get(section, set()) and old.get(section, {}).get(key, value) != value
    ]
