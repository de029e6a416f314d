"""The configuration: strict, all problems at once, and what is written reads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.config import Config, DataConfig, dump_config, load_config
from dflash.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_valid_and_reads_back_equal(example: Path, tmp_path: Path) -> None:
    config = load_config(example)
    again = load_config(write(tmp_path, dump_config(config)))
    assert again == config


def test_defaults_need_only_a_data_path() -> None:
    config = Config(data=DataConfig(path="data"))
    assert (config.drafter.num_layers, config.drafter.block_size, config.optim.lr) == (5, 16, 6e-4)


def test_every_problem_is_reported_at_once_with_key_got_and_hint(tmp_path: Path) -> None:
    path = write(tmp_path, '[run]\nstesp = 3\nseed = -1\n[data]\npath = "d"\nrow_tokens = "x"\n[optm]\nlr = 1\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["x=1", "target.num_taps=0"])
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message.startswith(f"{path} with --set: 6 problem(s)")
    for part in (
        "run.stesp: unknown key; did you mean 'steps'?",
        "optm: unknown key; did you mean 'optim'?",
        "run.seed: input should be greater than or equal to 0, got -1",
        "data.row_tokens: input should be a valid integer, got 'x'",
        "target.num_taps: input should be greater than or equal to 1, got 0",
        "--set x=1: expected section.key=value",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "data: required, but not set"),
        ("[data]\n", "data.path: required, but not set"),
        ("data = 3\n", "data: "),
        ("[data\n", "not valid TOML"),
        ('[data]\npath = "d"\nrow_tokens = 32\n[drafter]\nblock_size = 64\n', "does not fit into data.row_tokens 32"),
        ('[data]\npath = "d"\n[optim]\nbetas = [0.9]\n', "optim.betas"),
        ('[data]\npath = "d"\n[run]\nsteps = true\n', "run.steps"),
        ('[data]\npath = "d"\n[optim]\nlr = inf\n', "optim.lr"),
        ('[data]\npath = "d"\n[optim]\nlr = 1e300\n', "optim.lr"),
        ('[data]\npath = "d"\n[optim]\nbetas = [1, 1]\n', "optim.betas.0"),
        ('[data]\npath = "d"\n[optim]\nbetas = [true, false]\n', "optim.betas.0"),
        ('[data]\npath = "d"\nrow_tokens = 1000000000000\n', "data.row_tokens"),
        ("x = " + "[" * 5000 + "\n", "not valid TOML"),
        ("x = " + "1" * 5000 + "\n", "not valid TOML"),
        ('run = 3\n[data]\npath = "d"\n', "run: must be a section, written [run], got 3"),
    ],
)
def test_bad_files_are_one_clear_error(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert part in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        load_config(tmp_path / "none.toml")


def test_set_takes_toml_values_and_bare_text(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\npath = "d"\n')
    config = load_config(path, ["optim.lr=1", "data.path=other/place", "optim.betas=[0, 0.9]", "compile.enabled=false"])
    assert config.optim.lr == 1.0
    assert config.data.path == "other/place"
    assert config.optim.betas == (0.0, 0.9)
    assert config.compile.enabled is False


def test_run_directory_follows_the_file_unless_set(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\npath = "d"\n')
    assert load_config(path).run.dir == "runs/my"
    assert load_config(path, ["run.dir=elsewhere"]).run.dir == "elsewhere"
