"""Draft-and-verify emits what plain decoding emits, counts rightly, and the export says the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dflash.config import OptimConfig
from dflash.decode import DraftContext, cut, decode_drafted, decode_plain
from dflash.drafter import Drafter
from dflash.errors import InputError
from dflash.evaluate import evaluate, explain
from dflash.export import export, load_export
from dflash.jsonl import Sample
from dflash.optim import MasterAdamW
from dflash.target import Target
from tests.dflash.helpers import HIDDEN, random_document, tiny_drafter, tiny_shape, tiny_target
from tests.dflash.test_state import save


class Template:
    """A tokenizer that maps a prompt to ids by its characters."""

    chat_template = "t"

    def apply_chat_template(self, turns: list[dict[str, str]], **_options: object) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(c) % 90 for c in turns[0]["content"]]}


@pytest.mark.parametrize("seed", range(4))
def test_a_random_drafter_changes_nothing_about_the_text(seed: int) -> None:
    target, drafter = tiny_target(seed), tiny_drafter(seed=seed)
    prompt = random_document(9, 0, seed)[0]
    plain = decode_plain(target, prompt, max_new_tokens=25)
    drafted = decode_drafted(target, drafter, prompt, max_new_tokens=25)
    assert drafted.tokens == plain.tokens
    assert 1 + sum(drafted.emitted) == len(drafted.tokens)  # the prompt's own forward gives the first
    assert len(drafted.tokens) <= 25


class Oracle(Drafter):
    """Drafts what the target will say, from a script."""

    script: list[int]
    anchor_at: int

    def answer(self, context: DraftContext) -> list[int]:
        start = context.length - self.anchor_at + 1
        tokens = self.script[start : start + self.shape.block_size - 1]
        return tokens + [5] * (self.shape.block_size - 1 - len(tokens))


def test_a_perfect_drafter_is_accepted_whole_and_one_wrong_slot_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target()
    prompt = random_document(9, 0, 1)[0]
    script = list(decode_plain(target, prompt, max_new_tokens=25).tokens)
    assert len(script) == 25
    oracle = Oracle(tiny_shape())
    oracle.script, oracle.anchor_at = script, len(prompt)

    def logits(self: DraftContext, anchor: int, embedding: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(oracle.answer(self)), head.shape[0]).float()

    monkeypatch.setattr(DraftContext, "draft_logits", logits)
    drafted = decode_drafted(target, oracle, prompt, max_new_tokens=25)
    assert drafted.tokens == tuple(script)
    assert drafted.emitted == (4,) * 6  # 1 + 6 x 4
    assert drafted.accepted_length == 4.0
    oracle.script = [*script[:3], 7 if script[3] != 7 else 8, *script[4:]]
    drafted = decode_drafted(target, oracle, prompt, max_new_tokens=25)
    assert drafted.tokens == tuple(script)
    assert drafted.accepted[:2] == (2, 3)  # tokens 1 and 2, then a fresh block from token 3


def test_decoding_stops_at_the_end_token_inside_a_block() -> None:
    assert cut([5, 2, 7], frozenset({2}), 9) == [5, 2]
    assert cut([5, 6, 7], frozenset({2}), 2) == [5, 6]


def evaluated(target: Target, drafter: Drafter):
    target.tokenizer = Template()
    samples = [Sample(id=str(i), prompt=f"prompt {i * 7}") for i in range(3)]
    return evaluate(target, drafter, samples, max_new_tokens=12, step=5)


def test_evaluation_is_lossless_and_within_bounds() -> None:
    result = evaluated(tiny_target(), tiny_drafter())
    assert (result.prompts, result.identical, result.differences) == (3, 3, ())
    assert 1.0 <= result.accepted_length <= 4.0
    assert len(result.accepted_by_position) == 3
    assert list(result.accepted_by_position) == sorted(result.accepted_by_position, reverse=True)
    document = result.document()
    assert document["schema"] == 1
    assert {"prompts", "identical", "accepted_length", "accepted_by_position", "tokens_per_s", "speedup"} <= set(
        document
    )


def test_a_difference_is_told_with_its_logit_gap() -> None:
    target = tiny_target()
    prompt = random_document(9, 0, 1)[0]
    plain = list(decode_plain(target, prompt, max_new_tokens=6).tokens)
    wrong = [*plain[:3], (plain[3] + 1) % 90 + 3, *plain[4:]]
    difference = explain(target, "a", prompt, plain, wrong)
    assert (difference.index, difference.plain, difference.drafted) == (3, plain[3], wrong[3])
    assert difference.gap > 0
    assert not difference.is_tie


def test_export_holds_58_tensors_and_the_same_argmax(tmp_path: Path) -> None:
    from dflash.checkpoint import load_checkpoint

    target, shape = tiny_target(), tiny_shape(num_layers=5, block_size=8)
    drafter = tiny_drafter(shape)
    path = save(tmp_path / "checkpoints", 1, drafter, MasterAdamW(drafter.named_parameters(), OptimConfig()))
    assert export(load_checkpoint(path), tmp_path / "out", bos_token_id=1, eos_token_id=2) == 58
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["block_size"] == config["dflash_config"]["block_size"] == 8
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["num_target_layers"] == 6
    assert config["dflash_config"]["target_layer_ids"] == list(shape.target_layer_ids)
    reloaded, tensors = load_export(tmp_path / "out", target_hidden_size=HIDDEN)
    assert len(tensors) == 58
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    picks = []
    for model in (drafter.to(torch.bfloat16), reloaded):
        context = DraftContext(model)
        context.extend(target.run(torch.tensor([random_document(20, 0, 3)[0]]), shape.target_layer_ids)[1])
        picks.append(context.draft_logits(7, target.embedding_weight, target.head_weight).argmax(-1))
    assert torch.equal(picks[0], picks[1])
    with pytest.raises(InputError, match="exists"):
        export(load_checkpoint(path), tmp_path / "out", bos_token_id=1, eos_token_id=2)


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_an_incomplete_export_is_refused(tmp_path: Path, damage: str) -> None:
    from dflash.checkpoint import load_checkpoint

    drafter = tiny_drafter()
    path = save(tmp_path / "checkpoints", 1, drafter, MasterAdamW(drafter.named_parameters(), OptimConfig()))
    export(load_checkpoint(path), tmp_path / "out", bos_token_id=1, eos_token_id=2)
    (tmp_path / "out" / damage).write_bytes(b"{}")
    with pytest.raises(InputError, match="not a complete export"):
        load_export(tmp_path / "out", target_hidden_size=HIDDEN)
