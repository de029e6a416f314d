"""Chat template and tokens: the one place that turns a prompt into token ids.

In: a tokenizer with a chat template. Out: prompt ids that end where the target starts to write. Generation, data
preparation and evaluation all use it, so that they cannot drift apart.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dflash.errors import InputError
from dflash.jsonl import Sample


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Ids of a user turn and the opening of the assistant's.

    Raises:
        InputError: the tokenizer has no chat template.
    """
    _require_template(tokenizer)
    turn = [{"role": "user", "content": prompt}]
    encoded = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=True)
    return list(encoded["input_ids"])


def sample_ids(tokenizer: Any, sample: Sample, eos_id: int) -> tuple[list[int], int]:
    """Ids of prompt and response, and the length of the prompt.

    ``response_ids`` are taken as they are; a response that is text only is tokenised and ended with ``eos_id``.
    """
    prompt = prompt_ids(tokenizer, sample.prompt)
    if sample.response_ids is not None:
        return prompt + list(sample.response_ids), len(prompt)
    response = tokenizer(sample.response or "", add_special_tokens=False)["input_ids"]
    return [*prompt, *response, eos_id], len(prompt)


def template_hash(tokenizer: Any) -> str:
    """Hex sha256 of the chat template."""
    return hashlib.sha256(_require_template(tokenizer).encode()).hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """Hex sha256 of the whole tokenizer (vocabulary, merges, normalisation, special tokens)."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for transient in ("truncation", "padding"):  # set by whoever called last, not part of the tokenizer
        backend.pop(transient, None)
    return hashlib.sha256(json.dumps(backend, sort_keys=True).encode()).hexdigest()


def _require_template(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if not isinstance(template, str) or not template:
        raise InputError("the target's tokenizer has no chat template: an instruction-tuned target is needed")
    return template
