"""Finding and loading a target: local directories, composite configurations, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, PreTrainedTokenizerFast
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration

from dflash.errors import InputError
from dflash.target import first_id, load_target, locate_target, read_text_config
from tests.dflash.helpers import VOCAB, tiny_target


def save_tokenizer(directory: Path) -> None:
    vocabulary = {f"t{i}": i for i in range(VOCAB)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))).save_pretrained(
        directory
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_target().model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def load(directory: Path):
    return load_target(locate_target(str(directory)), device=torch.device("cpu"), dtype=torch.float32)


def test_a_local_directory_gives_the_model_that_was_saved(directory: Path) -> None:
    target, saved = load(directory), tiny_target()
    tokens = torch.tensor([[5, 6, 7]])
    last, features = target.run(tokens, (1, 3), use_cache=False)
    wanted, wanted_features = saved.run(tokens, (1, 3), use_cache=False)
    assert torch.equal(features, wanted_features)
    assert torch.equal(target.logits(last), saved.logits(wanted))
    assert torch.equal(target.logits(last), saved.model(tokens).logits)
    assert (target.vocab_size, target.eos_token_ids) == (VOCAB, frozenset({2}))


def test_the_fingerprint_names_the_weights_and_the_tokenizer(directory: Path) -> None:
    before = locate_target(str(directory)).fingerprint
    assert locate_target(str(directory)).fingerprint == before
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    changed = locate_target(str(directory)).fingerprint
    assert changed != before
    (directory / "tokenizer_config.json").write_text("{}")
    assert locate_target(str(directory)).fingerprint not in (before, changed)


def test_a_composite_configuration_gives_its_text_model(tmp_path: Path) -> None:
    text = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "eos_token_id": 2,
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen3_5Config(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    whole = Qwen3_5ForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert not hasattr(AutoConfig.from_pretrained(tmp_path), "hidden_size")

    target = load(tmp_path)
    assert (target.config.hidden_size, target.config.num_hidden_layers, target.vocab_size) == (32, 4, VOCAB)
    tokens = torch.tensor([[5, 6, 7, 8]])
    last, features = target.run(tokens, (1, 3), use_cache=False)
    assert features.shape == (1, 4, 64)
    with torch.no_grad():
        wanted = whole(input_ids=tokens).logits
    torch.testing.assert_close(target.logits(last), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("./nowhere", "no such directory"),
        ("a/b/c", "no such directory"),
        ("justaname", "no such directory"),
        ("nowhere.gguf", "no such GGUF file"),
        ("package:json", "holds 0 .gguf files"),
        ("package:no_such", "no such package is installed"),
        ("package:../etc", "no such package is installed"),
    ],
)
def test_what_is_not_there_is_refused(model: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        locate_target(model)
    assert part in str(caught.value)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        locate_target(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be loaded"):
        load(tmp_path)
    with pytest.raises(InputError, match="cannot be loaded"):
        read_text_config(locate_target(str(tmp_path)))


def test_cut_weights_are_refused(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be loaded as a causal language model"):
        load(directory)


def test_a_hub_that_cannot_be_reached_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    files = locate_target("no/such-model")
    with pytest.raises(InputError, match="the hub did not give it"):
        load_target(files, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize(("token_id", "first"), [(2, 2), ([7, 8], 7), (None, None)])
def test_first_id(token_id: int | list[int] | None, first: int | None) -> None:
    assert first_id(token_id) == first
