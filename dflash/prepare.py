"""``dflash data prepare``: responses to an Arrow data set of token ids on disk, and reading it back.

In: a JSONL file of responses and the target's tokenizer. Out: a directory holding a ``datasets`` data set with the
columns id, tokens, prompt_length, and ``prepared.json``: hashes of the tokenizer, template, target and source, counts,
and the sha256 of every Arrow file (checked when it is read). Tokens from prompt_length on are supervised.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_origin, get_type_hints

import datasets
from datasets import Dataset

from dflash.chat import sample_ids, template_hash, tokenizer_hash
from dflash.errors import InputError
from dflash.jsonl import read_samples
from dflash.target import TargetFiles, load_tokenizer
from envguard.atomic import new_directory, sha256_file

SCHEMA = 1
FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "tokens": datasets.List(datasets.Value("int32")),
        "prompt_length": datasets.Value("int32"),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """``prepared.json``."""

    schema: int
    source_sha256: str
    target_fingerprint: str
    tokenizer_sha256: str
    template_sha256: str
    samples: int
    skipped_short: int
    """Samples with fewer than two supervised tokens."""
    tokens: int
    supervised_tokens: int
    max_token_id: int
    files: dict[str, str]
    """Arrow file name -> sha256."""

    @property
    def digest(self) -> str:
        """One hash for the whole data set: of the Arrow files' hashes."""
        return "-".join(sorted(self.files.values()))


def prepare(source: Path, out: Path, files: TargetFiles, *, eos_id: int, vocab_size: int) -> Prepared:
    """Tokenise ``source`` into the new directory ``out``.

    Raises:
        InputError: ``out`` exists, a sample has no response, an id is outside the vocabulary, or nothing remains.
    """
    if out.exists():
        raise InputError(f"{out}: exists; choose another directory or delete it")
    tokenizer = load_tokenizer(files)
    rows: list[dict[str, object]] = []
    skipped = 0
    for number, sample in enumerate(read_samples(source), 1):
        if sample.response is None and sample.response_ids is None:
            raise InputError(
                f"{source}: sample {number} ({sample.id}) has no response; run `dflash data generate` first"
            )
        tokens, prompt_length = sample_ids(tokenizer, sample, eos_id)
        if max(tokens) >= vocab_size:
            raise InputError(
                f"{source}: sample {number} ({sample.id}) holds token id {max(tokens)}, "
                f"outside the vocabulary of {vocab_size}"
            )
        if len(tokens) - prompt_length < 2:
            skipped += 1
            continue
        rows.append({"id": sample.id, "tokens": tokens, "prompt_length": prompt_length})
    if not rows:
        raise InputError(f"{source}: none of its {skipped} samples has two supervised tokens")
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_directory(out) as temp:
        Dataset.from_list(rows, features=FEATURES).save_to_disk(temp)
        lengths = [len(row["tokens"]) for row in rows]  # type: ignore[arg-type]
        prepared = Prepared(
            schema=SCHEMA,
            source_sha256=sha256_file(source),
            target_fingerprint=files.fingerprint,
            tokenizer_sha256=tokenizer_hash(tokenizer),
            template_sha256=template_hash(tokenizer),
            samples=len(rows),
            skipped_short=skipped,
            tokens=sum(lengths),
            supervised_tokens=sum(lengths) - sum(row["prompt_length"] for row in rows),  # type: ignore[misc]
            max_token_id=max(max(row["tokens"]) for row in rows),  # type: ignore[arg-type]
            files={path.name: sha256_file(path) for path in sorted(temp.glob("*.arrow"))},
        )
        (temp / "prepared.json").write_text(json.dumps(asdict(prepared), indent=1, sort_keys=True) + "\n")
    return prepared


def _read_record(path: Path) -> Prepared:
    """``prepared.json``; raises ValueError or TypeError for a field that is missing, unknown or of another type."""
    raw = json.loads(path.read_text())
    if not isinstance(raw, dict):
        raise TypeError("not an object")
    prepared = Prepared(**raw)
    for name, kind in get_type_hints(Prepared).items():
        if type(getattr(prepared, name)) is not (get_origin(kind) or kind):
            raise TypeError(f"{name} must be {kind}")
    return prepared


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One tokenised sample."""

    id: str
    tokens: list[int]
    prompt_length: int


def read_prepared(path: Path) -> tuple[Prepared, list[Document]]:
    """Load and verify a prepared data set.

    Raises:
        InputError: missing, of another schema, or any Arrow file differs from its recorded hash.
    """
    try:
        prepared = _read_record(path / "prepared.json")
    except FileNotFoundError:
        raise InputError(
            f"{path}: not a prepared data set (no prepared.json); make one with `dflash data prepare`"
        ) from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path / 'prepared.json'}: damaged: {error}") from None
    if prepared.schema != SCHEMA:
        raise InputError(
            f"{path}: prepared with schema {prepared.schema}, this version reads {SCHEMA}; prepare it again"
        )
    if not prepared.files or {file.name for file in path.glob("*.arrow")} != set(prepared.files):
        raise InputError(f"{path}: its Arrow files are not those of prepared.json; prepare it again")
    for name, digest in prepared.files.items():
        file = path / name
        if not file.is_file() or sha256_file(file) != digest:
            raise InputError(f"{file}: missing or damaged (its sha256 differs from prepared.json); prepare it again")
    try:
        table = datasets.load_from_disk(str(path))
        if table.features != FEATURES:
            raise ValueError(f"its columns are {table.features}")
    except Exception as error:  # datasets and pyarrow raise many kinds for a damaged directory
        raise InputError(f"{path}: cannot be read as a data set: {str(error).splitlines()[0]}") from error
    return prepared, [Document(**row) for row in table]
