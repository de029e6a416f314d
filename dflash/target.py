"""The frozen target model: find it, convert it once if it is a GGUF file, load it, run it for features.

In: the ``[target] model`` setting: a local Hugging Face directory, a .gguf file, ``package:NAME`` (a GGUF file inside
an installed package) or a hub id. Out: a ``Target`` whose ``features`` are the outputs of the tapped layers.
GGUF weights are converted to float32 safetensors under the platform's cache directory, keyed by the file's sha256, so
that every later start loads them by mmap. It never trains, and never computes logits for features.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from dflash.console import stage
from dflash.errors import InputError
from dflash.paths import targets_dir
from envguard.atomic import new_directory, sha256_file, sweep

GGUF_MAGIC = b"GGUF"
CONVERTER = 1  # raise it when the conversion changes, so that old conversions are not reused
_BAD_GGUF = (ValueError, OSError, KeyError, RuntimeError, IndexError, struct.error)
"""What transformers and gguf raise for a damaged file."""
SAMPLE = 1 << 20  # bytes of each end of a weight file that enter the target's fingerprint


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetFiles:
    """Where a target is and what it is."""

    directory: str
    """A Hugging Face directory, or a hub id."""
    fingerprint: str
    """What it is: hex sha256 of the GGUF source, or over configuration, tokenizer, weight headers, sizes and samples of
    a directory; "hub:<id>" for a hub id."""


def locate_target(model: str) -> TargetFiles:
    """Resolve the setting; converts a GGUF file on first use (tens of seconds, shown as a progress bar).

    Raises:
        InputError: no such file, package or directory, or not a GGUF file.
    """
    if gguf := _gguf_of(model):
        return _converted(gguf)
    if not model:
        raise InputError(
            "target.model is empty; allowed: a Hugging Face directory, a .gguf file, package:NAME, a hub id"
        )
    path = _path_of(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{path}: not a Hugging Face model directory (no config.json)")
        return TargetFiles(directory=str(path), fingerprint=_fingerprint(path))
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise InputError(
            f"target.model = {model!r}: no such directory; allowed: a Hugging Face directory, a .gguf file, "
            f"package:NAME, or a hub id such as Qwen/Qwen3-4B"
        )
    return TargetFiles(directory=model, fingerprint=f"hub:{model}")


def unconverted(model: str) -> Path | None:
    """The GGUF file that ``locate_target`` would have to convert.

    Raises:
        InputError: as ``locate_target`` before it converts.
    """
    gguf = _gguf_of(model)
    return gguf if gguf and not _conversion(gguf)[1].is_dir() else None


def _path_of(model: str) -> Path:
    return Path(model).expanduser() if model.startswith("~/") else Path(model)


def _gguf_of(model: str) -> Path | None:
    """The GGUF file that the setting names, if it does."""
    if model.startswith("package:"):
        return _gguf_in_package(model.removeprefix("package:"))
    path = _path_of(model)
    return path if path.suffix == ".gguf" else None


def _gguf_in_package(name: str) -> Path:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"target.model = 'package:{name}': no such package is installed; `uv sync` installs the example's"
        )
    found = sorted(path for root in spec.submodule_search_locations for path in Path(root).glob("*.gguf"))
    if len(found) != 1:
        raise InputError(f"package {name} holds {len(found)} .gguf files, expected one; name the file's path instead")
    return found[0]


def _conversion(gguf: Path) -> tuple[str, Path]:
    """The file's sha256, and where its conversion is or will be."""
    if not gguf.is_file():
        raise InputError(f"{gguf}: no such GGUF file")
    with gguf.open("rb") as handle:
        if handle.read(4) != GGUF_MAGIC:
            raise InputError(f"{gguf}: not a GGUF file (its first bytes are not {GGUF_MAGIC.decode()})")
    source = sha256_file(gguf)
    return source, targets_dir() / f"{source[:16]}-v{CONVERTER}"


def _converted(gguf: Path) -> TargetFiles:
    """The converted directory of a GGUF file; converts under a lock, atomically."""
    source, directory = _conversion(gguf)
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{directory}.lock"):
            sweep(directory)
            if not directory.is_dir():
                _convert(gguf, source, directory)
    try:
        if json.loads((directory / "dflash_target.json").read_text())["files"] != _fingerprint(directory):
            raise ValueError("its files differ from those that were converted")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{directory}: damaged conversion of {gguf.name}: {error}; delete the directory to redo it"
        ) from None
    # Of the source, not of the files made from it: the same target must have one name on every machine.
    name = hashlib.sha256(f"gguf {source} converter {CONVERTER}".encode()).hexdigest()
    return TargetFiles(directory=str(directory), fingerprint=name)


def _convert(gguf: Path, source: str, directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with stage(f"convert {gguf.name}", steps=3) as advance, new_directory(directory) as temp:
        try:
            model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
            advance()
            tokenizer = AutoTokenizer.from_pretrained(**place)
            advance()
        except _BAD_GGUF as error:
            raise _gguf_error(gguf, error) from error
        # This package's tokenizer names <|im_start|> as its end; the model's own configuration is right.
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
        tokenizer.pad_token = tokenizer.eos_token
        model.save_pretrained(temp)
        tokenizer.save_pretrained(temp)
        record = {"source": gguf.name, "source_sha256": source, "files": _fingerprint(temp)}
        (temp / "dflash_target.json").write_text(json.dumps(record, indent=1) + "\n")
        advance()


def _fingerprint(directory: Path) -> str:
    """Configuration and tokenizer whole, weights by name, size and both ends: 10 ms instead of seconds."""
    digest = hashlib.sha256()
    names = ["*.json", "*.jinja", "*.model", "*.safetensors", "*.bin"]
    for path in sorted({file for name in names for file in directory.glob(name)}):
        if path.name == "dflash_target.json":
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as handle:
            digest.update(handle.read(SAMPLE))
            handle.seek(max(0, size - SAMPLE))
            digest.update(handle.read(SAMPLE))
    return digest.hexdigest()


class Target:
    """A loaded target: decoder, tokenizer, frozen embedding and head."""

    def __init__(self, model: nn.Module, tokenizer: Any, files: TargetFiles) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.files = files
        self.config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        self.embedding_weight: Tensor = model.get_input_embeddings().weight
        self.head_weight: Tensor = model.get_output_embeddings().weight

    @property
    def device(self) -> torch.device:
        return self.embedding_weight.device

    @property
    def vocab_size(self) -> int:
        return self.embedding_weight.shape[0]

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a response, from the generation configuration."""
        eos = self.model.generation_config.eos_token_id
        if eos is None:
            eos = self.config.eos_token_id
        return frozenset(eos) if isinstance(eos, list) else frozenset([eos])

    @torch.no_grad()
    def run(self, tokens: Tensor, layer_ids: tuple[int, ...], **cache: Any) -> tuple[Tensor, Tensor]:
        """One forward of the decoder without the head.

        Args:
            tokens: [R, S] int64. Right padding needs no mask: a causal model's earlier outputs do not see it.
            layer_ids: 0-based layers whose outputs (after the residual, before any final norm) are wanted.
            cache: ``past_key_values`` and friends, handed to the model.

        Returns:
            last hidden states [R, S, D] (normed) and features [R, S, N*D], taps side by side.
        """
        taps: dict[int, Tensor] = {}

        def keep(layer_id: int) -> Any:
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                taps[layer_id] = output[0] if isinstance(output, tuple) else output

            return hook

        handles = [self.decoder.layers[i].register_forward_hook(keep(i)) for i in layer_ids]
        try:
            last = self.decoder(input_ids=tokens, **cache).last_hidden_state
        finally:
            for handle in handles:
                handle.remove()
        features = torch.cat([taps[i] for i in layer_ids], dim=-1) if layer_ids else last[..., :0]
        return last, features

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return hidden @ self.head_weight.T


def load_target(files: TargetFiles, *, device: torch.device, dtype: torch.dtype) -> Target:
    """Load weights (mmap) and tokenizer, frozen and in evaluation mode.

    A composite configuration (text and vision, such as Qwen3.5) loads its text model only.

    Raises:
        InputError: the hub cannot be reached, or the files are not a causal language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(files.directory)
        model = AutoModelForCausalLM.from_pretrained(files.directory, config=config.get_text_config(), dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(files.directory)
    except Exception as error:
        raise _load_error(files, error) from error
    model.requires_grad_(False).eval().to(device)
    return Target(model, tokenizer, files)


def read_text_config(files: TargetFiles) -> Any:
    """The text model's configuration, without its weights.

    Raises:
        InputError: as ``load_target``.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(files.directory).get_text_config()
    except Exception as error:
        raise _load_error(files, error) from error


def read_gguf_config(gguf: Path) -> Any:
    """The text model's configuration of a GGUF file that is not converted.

    Raises:
        InputError: it cannot be read.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name).get_text_config()
    except _BAD_GGUF as error:
        raise _gguf_error(gguf, error) from error


def _gguf_error(gguf: Path, error: Exception) -> InputError:
    return InputError(f"{gguf}: cannot be read as GGUF: {(str(error).splitlines() or [type(error).__name__])[0]}")


def first_id(token_id: int | list[int] | None) -> int | None:
    """Configurations name one id or several; the first is the one to write."""
    return token_id[0] if isinstance(token_id, list) else token_id


def load_tokenizer(files: TargetFiles) -> Any:
    """The tokenizer alone.

    Raises:
        InputError: as ``load_target``.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(files.directory)
    except Exception as error:
        raise _load_error(files, error) from error


def _load_error(files: TargetFiles, error: Exception) -> InputError:
    """transformers and the hub raise many kinds; the user needs one line."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    if files.fingerprint.startswith("hub:"):
        return InputError(
            f"target.model = {files.directory!r}: no such local directory, and the hub did not give it ({first}); "
            f"download it once where the hub can be reached and set target.model to its directory"
        )
    return InputError(f"{files.directory}: cannot be loaded as a causal language model: {first}")
