"""Checkpoints: one atomic directory holding the whole loop state, and reading it back only if every byte is right.

In: a drafter, its optimizer and the step. Out: ``step_XXXXXXXX/`` with ``state.safetensors`` (float32 masters and
moments) and ``state.json`` (step, shape, configuration, data, sha256 of the tensors). There is no random state to save:
rows and anchors are functions of (seed, step). A checkpoint casts nothing; serving files come from ``export.py``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.drafter import Drafter, DrafterShape
from dflash.errors import InputError
from dflash.optim import MasterAdamW
from envguard.atomic import new_directory, sha256_bytes, sha256_file, temp_name

SCHEMA = 1
_NAME = re.compile(r"step_(\d{8,})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint as read."""

    path: Path
    step: int
    """Optimizer steps done."""
    shape: DrafterShape
    config: dict[str, Any]
    target_fingerprint: str
    target_model: str
    data_digest: str
    tensors: dict[str, Tensor]

    def weights(self) -> dict[str, Tensor]:
        """The drafter's float32 weights by serving name."""
        return {name.removeprefix("master."): t for name, t in self.tensors.items() if name.startswith("master.")}


def save_checkpoint(
    directory: Path,
    *,
    step: int,
    drafter: Drafter,
    optimizer: MasterAdamW,
    config: dict[str, Any],
    target_fingerprint: str,
    data_digest: str,
    keep: int,
) -> Path:
    """Write ``directory/step_XXXXXXXX``, delete all but the newest ``keep``; one of this step stays as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step_{step:08d}"
    prune_checkpoints(directory, keep=keep)
    if not (path / "state.json").is_file():
        _remove(path)  # a part of a checkpoint can be loaded by nobody
        with new_directory(path) as temp:
            tensors = {name: tensor.contiguous().cpu() for name, tensor in optimizer.state_tensors().items()}
            write_tensors(tensors, temp / "state.safetensors")
            state = {
                "schema": SCHEMA,
                "step": step,
                "shape": asdict(drafter.shape),
                "config": config,
                "target_fingerprint": target_fingerprint,
                "data_digest": data_digest,
                "torch": torch.__version__,
                "sha256": sha256_file(temp / "state.safetensors"),
            }
            (temp / "state.json").write_text(seal(state))
    prune_checkpoints(directory, keep=keep)
    return path


def prune_checkpoints(directory: Path, *, keep: int) -> None:
    """Remove all but the newest ``keep``, and what a writer that was killed left: the run directory has one owner."""
    for left in directory.glob(".tmp-*"):
        shutil.rmtree(left, ignore_errors=True)
    for old in list_checkpoints(directory)[:-keep]:
        _remove(old)


def _remove(path: Path) -> None:
    """Remove a checkpoint, or a link to one alone; its name first, so that no kill leaves a part of it under that."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path.rename(temp_name(path)))


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """``safetensors`` with the system's own error where the disk refuses.

    Raises:
        OSError: as the system says, such as no space left.
    """
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found.group(1)) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def seal(state: dict[str, Any]) -> str:
    """``state`` as JSON with the sha256 of itself in it, so that no field can change unnoticed."""
    body = json.dumps(state, indent=1, sort_keys=True)
    return json.dumps({"sealed": sha256_bytes(body.encode()), "state": state}, indent=1, sort_keys=True) + "\n"


def unseal(text: str) -> dict[str, Any]:
    """The inverse of ``seal``.

    Raises:
        ValueError: not sealed by us, or changed since.
    """
    document = json.loads(text)
    state = document["state"] if isinstance(document, dict) and set(document) == {"sealed", "state"} else None
    if not isinstance(state, dict) or seal(state) != text:
        raise ValueError("its content differs from the seal in it")
    return state


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoints, oldest first (a name appears only when its content is durable)."""
    if not directory.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    found = [(int(name[1]), path) for name, path in named if name and path.is_dir() and (path / "state.json").exists()]
    return [path for _, path in sorted(found)]


def find_checkpoint(path: Path) -> Path:
    """A checkpoint directory itself, or the newest of a run directory or its ``checkpoints``.

    Raises:
        InputError: there is none.
    """
    if (path / "state.json").is_file():
        return path
    for directory in (path, path / "checkpoints"):
        if found := list_checkpoints(directory):
            return found[-1]
    raise InputError(f"{path}: no checkpoint here; expected a step_XXXXXXXX directory or a run directory holding some")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint directory.

    Raises:
        InputError: missing, damaged, or of another schema: never a silent start from scratch.
    """
    try:
        state = unseal((path / "state.json").read_text())
        if state["schema"] != SCHEMA:
            raise InputError(f"{path}: checkpoint schema {state['schema']}, this version reads {SCHEMA}")
        if (name := _NAME.fullmatch(path.name)) and int(name[1]) != state["step"]:
            raise InputError(f"{path}: is the checkpoint of step {state['step']}; name it step_{state['step']:08d}")
        if sha256_file(path / "state.safetensors") != state["sha256"]:
            raise ValueError("the sha256 of state.safetensors differs from state.json")
        shape = dict(state["shape"], target_layer_ids=tuple(state["shape"]["target_layer_ids"]))
        return Checkpoint(
            path=path,
            step=state["step"],
            shape=DrafterShape(**shape),
            config=state["config"],
            target_fingerprint=state["target_fingerprint"],
            target_model=state["config"]["target"]["model"],
            data_digest=state["data_digest"],
            tensors=load_file(path / "state.safetensors"),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        older = [other.name for other in list_checkpoints(path.parent) if other.name < path.name]
        hint = f"; delete it to go on from {older[-1]}" if older else ""
        raise InputError(f"{path}: damaged checkpoint: {error}{hint}") from None
