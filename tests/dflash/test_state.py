"""Optimizer, schedule, counts and checkpoints."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from dflash.checkpoint import (
    Checkpoint,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from dflash.config import OptimConfig
from dflash.drafter import Drafter
from dflash.errors import InputError
from dflash.metrics import count_step
from dflash.optim import MasterAdamW, learning_rate
from tests.cache_tools.helpers import killed_at
from tests.dflash.helpers import batch_of, row_of, tiny_drafter


def test_rate_rises_linearly_then_falls_as_a_cosine() -> None:
    config = OptimConfig(lr=1.0, warmup_ratio=0.1, min_lr_ratio=0.2)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.6)  # half way: the mean of 1 and 0.2
    assert rates[99] == pytest.approx(0.2, abs=2e-3)
    assert all(a >= b for a, b in itertools.pairwise(rates[9:]))


def step_once(drafter: Drafter, optimizer: MasterAdamW, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    for parameter in drafter.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return optimizer.step(1e-3).item()


def test_float32_weights_are_their_own_masters_and_follow_torchs_adamw() -> None:
    ours, theirs = tiny_drafter(), tiny_drafter()
    optimizer = MasterAdamW(ours.named_parameters(), OptimConfig(clip_norm=1e9))
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for seed in range(3):
        step_once(ours, optimizer, seed)
        generator = torch.Generator().manual_seed(seed)
        for parameter in theirs.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        assert a.grad is None


def test_bfloat16_weights_keep_small_updates_in_their_masters() -> None:
    drafter = tiny_drafter().to(torch.bfloat16)
    optimizer = MasterAdamW(drafter.named_parameters(), OptimConfig(lr=1e-5))
    before = {name: master.detach().clone() for name, master in optimizer.masters.items()}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for parameter in drafter.parameters():
            parameter.grad = torch.rand(parameter.shape, generator=generator).to(torch.bfloat16)
        optimizer.step(1e-5)
    name = "fc.weight"
    moved = (optimizer.masters[name] - before[name]).abs()
    assert (moved > 0).all()
    assert (moved < 1e-4).all()  # lost where weights of 0.25 are bfloat16: their spacing is 1e-3
    assert torch.equal(drafter.state_dict()[name], optimizer.masters[name].to(torch.bfloat16))


def test_gradients_are_clipped_and_the_norm_before_is_returned() -> None:
    drafter = tiny_drafter()
    optimizer = MasterAdamW(drafter.named_parameters(), OptimConfig(clip_norm=1.0))
    norm = step_once(drafter, optimizer, 0)
    count = sum(p.numel() for p in drafter.parameters())
    assert norm == pytest.approx(count**0.5, rel=0.05)  # standard normal entries
    first_moment = torch.cat([t.flatten() for n, t in optimizer.state_tensors().items() if n.startswith("exp_avg.")])
    assert first_moment.norm().item() == pytest.approx(0.1, rel=1e-3)  # (1 - 0.9) x norm 1


def test_accepted_length_is_the_mean_of_per_block_runs_not_a_product_of_means() -> None:
    row = row_of(([5] * 12, 2), row_tokens=12)
    batch = batch_of(row, [2, 4, 9], slots=4)
    correct = torch.tensor(
        [[[True, True, False], [False, True, True], [True, True, True], [True, True, True]]]
    )  # the third block has two labels left, the fourth slot is unused
    counts = count_step(correct, batch)
    assert (counts.blocks, counts.accepted) == (3, (1 + 2) + (1 + 0) + (1 + 2))
    assert counts.accepted_length == pytest.approx(7 / 3)
    assert (counts.slots, counts.right) == (8, 6)


def saved(tmp_path: Path, steps: int = 2) -> tuple[Drafter, MasterAdamW, Path]:
    drafter = tiny_drafter()
    optimizer = MasterAdamW(drafter.named_parameters(), OptimConfig())
    for seed in range(steps):
        step_once(drafter, optimizer, seed)
    return drafter, optimizer, save(tmp_path, steps, drafter, optimizer)


def save(directory: Path, step: int, drafter: Drafter, optimizer: MasterAdamW, keep: int = 2) -> Path:
    return save_checkpoint(
        directory,
        step=step,
        drafter=drafter,
        optimizer=optimizer,
        config={"target": {"model": "tiny"}},
        target_fingerprint="t",
        data_digest="d",
        keep=keep,
    )


def test_a_loaded_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    drafter, optimizer, path = saved(tmp_path)
    checkpoint: Checkpoint = load_checkpoint(path)
    assert (checkpoint.step, checkpoint.shape) == (2, drafter.shape)
    again = tiny_drafter(seed=9)
    resumed = MasterAdamW(again.named_parameters(), OptimConfig())
    resumed.load_state_tensors(checkpoint.tensors)
    for seed in range(5, 8):
        assert step_once(drafter, optimizer, seed) == step_once(again, resumed, seed)
    for a, b in zip(drafter.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_before_the_first_step_can_be_loaded(tmp_path: Path) -> None:
    drafter, _, path = saved(tmp_path, steps=0)
    again = tiny_drafter(seed=9)
    MasterAdamW(again.named_parameters(), OptimConfig()).load_state_tensors(load_checkpoint(path).tensors)
    assert torch.equal(again.fc.weight, drafter.fc.weight)


def test_only_the_newest_are_kept_and_found(tmp_path: Path) -> None:
    drafter, optimizer, _ = saved(tmp_path / "checkpoints")
    for step in (3, 4, 5):
        save(tmp_path / "checkpoints", step, drafter, optimizer)
    (tmp_path / "checkpoints" / ".tmp-step_00000006-x").mkdir()  # left by a kill
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step_00000004", "step_00000005"]
    assert find_checkpoint(tmp_path).name == "step_00000005"


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "state", "schema"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    _, _, path = saved(tmp_path)
    tensors, state = path / "state.safetensors", path / "state.json"
    data = bytearray(tensors.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        tensors.write_bytes(data)
    elif damage == "cut":
        tensors.write_bytes(data[:-1])
    elif damage == "gone":
        tensors.unlink()
    elif damage == "state":
        state.write_text(state.read_text()[:40])
    else:
        state.write_text(json.dumps(json.loads(state.read_text()) | {"schema": 99}))
    with pytest.raises(InputError) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("field", ["step", "shape", "config", "data_digest", "target_fingerprint", "torch"])
def test_no_field_of_a_checkpoint_can_change_unnoticed(tmp_path: Path, field: str) -> None:
    _, _, path = saved(tmp_path)
    document = json.loads((path / "state.json").read_text())
    document["state"][field] = 1 if field == "step" else "x"
    (path / "state.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    with pytest.raises(InputError, match="differs from the seal"):
        load_checkpoint(path)


def test_a_damaged_newest_checkpoint_names_the_one_before(tmp_path: Path) -> None:
    drafter, optimizer, _ = saved(tmp_path)
    newest = save(tmp_path, 3, drafter, optimizer)
    (newest / "state.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="delete it to go on from step_00000002"):
        load_checkpoint(newest)


def test_what_a_killed_writer_left_is_swept_and_strays_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step_00000001-x").mkdir()
    (tmp_path / "step_99999999").mkdir()
    _, _, path = saved(tmp_path)
    assert list_checkpoints(tmp_path) == [path]
    assert not (tmp_path / ".tmp-step_00000001-x").exists()


def test_a_part_of_a_checkpoint_gives_way(tmp_path: Path) -> None:
    _, _, path = saved(tmp_path)
    (path / "state.json").unlink()
    (path / "notes").mkdir()
    assert list_checkpoints(tmp_path) == []
    _, _, path = saved(tmp_path)
    assert load_checkpoint(path).step == 2
    assert not (path / "notes").exists()


def test_a_kill_while_an_old_one_is_removed_leaves_no_part_of_it(tmp_path: Path) -> None:
    drafter, optimizer, _ = saved(tmp_path / "0")
    step = 0
    killed = True
    while killed:
        step += 1
        directory = tmp_path / str(step)
        shutil.copytree(tmp_path / "0", directory)
        killed = killed_at(step, functools.partial(save, directory, 3, drafter, optimizer, keep=1), plain=True)
        for path in directory.glob("step_*"):
            load_checkpoint(path)
        newest = list_checkpoints(directory)[-1]
        prune_checkpoints(directory, keep=1)
        assert list(directory.iterdir()) == [newest]
    assert step > 9, "the steps of a new directory, a rename and the removal of two files"


def test_a_checkpoint_that_was_moved_and_linked_counts_and_stays(tmp_path: Path) -> None:
    drafter, optimizer, path = saved(tmp_path / "run")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert list_checkpoints(tmp_path / "run") == [path]
    assert load_checkpoint(path).step == 2
    newest = save(tmp_path / "run", 3, drafter, optimizer, keep=1)
    assert list_checkpoints(tmp_path / "run") == [newest]
    assert load_checkpoint(tmp_path / "elsewhere").step == 2


def test_a_renamed_checkpoint_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    _, _, path = saved(tmp_path)
    renamed = path.rename(tmp_path / "step_00000099")
    with pytest.raises(InputError, match="is the checkpoint of step 2; name it step_00000002"):
        load_checkpoint(renamed)


def test_the_newest_is_the_one_of_most_steps(tmp_path: Path) -> None:
    for name in ("step_100000000", "step_99999999"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").touch()
    assert find_checkpoint(tmp_path).name == "step_100000000"


def test_no_checkpoint_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint here"):
        find_checkpoint(tmp_path)
