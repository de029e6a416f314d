"""Prompts and responses as JSON lines: read strictly, append safely.

In: a file of ``{"id", "prompt"}`` or ``{"id", "prompt", "response", "response_ids"}`` objects. Out: frozen records.
A half-written last line (a killed writer) is cut away before appending; everything else that is wrong is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import InputError

RECORD_START = b'{"id": '


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One prompt, perhaps with the response that the target wrote."""

    id: str
    prompt: str
    response: str | None = None
    response_ids: tuple[int, ...] | None = None
    """The very tokens the target generated, end token included; text alone may tokenise differently."""
    finish: str | None = None
    """"stop" (the target ended) or "length" (cut)."""


def read_samples(path: Path) -> list[Sample]:
    """All samples of a file.

    Raises:
        InputError: missing file, a line that is no object, a missing or empty prompt, a repeated id; names the line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    samples = list(parse_samples(path, data))
    if not samples:
        raise InputError(f"{path}: holds no samples; expected one JSON object a line with at least a prompt")
    seen: dict[str, int] = {}
    for number, sample in enumerate(samples, 1):
        if sample.id in seen:
            raise InputError(f"{path}: sample {number} repeats the id {sample.id!r} of sample {seen[sample.id]}")
        seen[sample.id] = number
    return samples


def parse_samples(path: Path, data: bytes) -> Iterator[Sample]:
    """The samples in ``data``, the content of ``path``; raises as ``read_samples``."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    # Not splitlines: JSON strings may hold U+2028 and other characters that it takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _sample(f"{path}:{number}", line, number)


def _sample(where: str, line: str, number: int) -> Sample:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a nest of thousands of brackets
        raise InputError(f"{where}: not valid JSON: {type(error).__name__}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{where}: expected an object with id and prompt, got {type(raw).__name__}")
    for key, value in raw.items():
        if isinstance(value, str) and not _is_unicode(value):
            raise InputError(f"{where}: {key} holds half of a surrogate pair, which is no text")
    prompt = raw.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"{where}: prompt must be a text that is not empty, got {prompt!r}")
    response, ids = raw.get("response"), raw.get("response_ids")
    if response is not None and not isinstance(response, str):
        raise InputError(f"{where}: response must be a text, got {response!r}")
    if ids is not None and not (isinstance(ids, list) and all(type(i) is int and i >= 0 for i in ids)):
        raise InputError(f"{where}: response_ids must be a list of token ids")
    return Sample(
        id=str(raw.get("id", number)),
        prompt=prompt,
        response=response,
        response_ids=None if ids is None else tuple(ids),
        finish=raw.get("finish"),
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def dump_sample(sample: Sample) -> str:
    """One line, without the newline."""
    record: dict[str, object] = {"id": sample.id, "prompt": sample.prompt}
    if sample.response is not None:
        record["response"] = sample.response
    if sample.response_ids is not None:
        record["response_ids"] = list(sample.response_ids)
    if sample.finish is not None:
        record["finish"] = sample.finish
    return json.dumps(record, ensure_ascii=False)


def cut_partial_line(path: Path) -> None:
    """Drop what follows the last newline: the trace of a killed writer.

    Raises:
        InputError: what would be dropped is not the beginning of a record of ours.
    """
    data = path.read_bytes()
    keep = data.rfind(b"\n") + 1
    tail = data[keep:]
    if tail and not (tail.startswith(RECORD_START) or RECORD_START.startswith(tail)):
        raise InputError(f"{path}: its last line is no response record; choose another output file")
    if tail:
        with path.open("r+b") as handle:
            handle.truncate(keep)
