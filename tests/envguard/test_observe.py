"""The observation: what is read, what survives damage, and the identity of what was observed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envguard.envjson import freeze_document
from envguard.errors import ProbeError, UsageError
from envguard.observe import observe
from envguard.probes import gpu
from envguard.probes.interpreter import default_python, find_interpreter
from envguard.probes.torch_build import TorchBuild, parse_version_file, read_torch_build
from tests.envguard.scratch import GIT_VERSION, Scratch, torch_version_file


def test_torch_build_is_read_without_running_the_file(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    path = tmp_path / "torch" / "version.py"
    path.write_text("raise SystemExit('executed')\n" + torch_version_file())
    assert read_torch_build(tmp_path) == TorchBuild(
        version="2.11.0+cu130", cuda="13.0", hip=None, git_version=GIT_VERSION
    )


def test_no_torch_is_none_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    assert read_torch_build(tmp_path) is None
    (tmp_path / "torch").mkdir()
    assert read_torch_build(tmp_path) is None  # a namespace left behind by an uninstall
    (tmp_path / "torch" / "version.py").write_text("cuda = '13.0'\n")
    with pytest.raises(ProbeError, match="holds no __version__"):
        read_torch_build(tmp_path)
    (tmp_path / "torch" / "version.py").write_text("#" * 70_000)
    with pytest.raises(ProbeError, match="larger than 65536 bytes"):
        read_torch_build(tmp_path)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_version_file_parses_or_is_a_probe_error(source: bytes) -> None:
    with contextlib.suppress(ProbeError):
        assert isinstance(parse_version_file(source, origin="x").version, str)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\n", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("GCC version:  gcc version 15.3.0 (GCC)\n", None),
    ],
)
def test_driver_version_from_proc(text: str, version: str | None) -> None:
    assert gpu.parse_proc_version(text) == version


def test_driver_version_probe_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 550.1.2\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "PROC_VERSION", tmp_path / "proc")
    monkeypatch.setattr(gpu, "MODULE_VERSION", tmp_path / "sys")
    assert gpu.driver_version() == "550.1.2"
    (tmp_path / "proc").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.1.2  Sat\n")
    assert gpu.driver_version() == "560.1.2"
    (tmp_path / "sys").write_text("570.1.2\n")
    assert gpu.driver_version() == "570.1.2"
    for path in tmp_path.iterdir():
        path.unlink()
    assert gpu.driver_version() is None


def test_a_venv_is_judged_without_being_run(scratch: Scratch) -> None:
    scratch.python.unlink()
    scratch.python.write_text("#!/bin/sh\nexit 9\n")
    scratch.python.chmod(0o755)
    judged = find_interpreter(scratch.python)
    assert judged.site_packages == scratch.site_packages
    assert judged.version == ".".join(map(str, sys.version_info[:3]))
    assert find_interpreter(scratch.root / ".venv") == judged


def test_an_interpreter_outside_a_venv_is_asked() -> None:
    base = Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info[:2])
    judged = find_interpreter(base)
    assert (judged.version, judged.is_venv) == (".".join(map(str, sys.version_info[:3])), False)


def test_what_is_no_interpreter_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no interpreter"):
        find_interpreter(tmp_path / "nothing")
    liar = tmp_path / "python"
    liar.write_text("#!/bin/sh\necho hello\n")
    liar.chmod(0o755)
    with pytest.raises(UsageError, match="does not answer as a Python 3 does"):
        find_interpreter(liar)


def test_damaged_metadata_is_a_value(scratch: Scratch) -> None:
    site = scratch.site_packages
    (site / "alpha-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00Name\x00" * 5000)
    (site / "beta-1.0.dist-info" / "METADATA").unlink()
    (site / "beta-1.0.dist-info" / "METADATA").symlink_to("METADATA")
    (site / "not_a_directory-1.dist-info").write_text("")
    found = {dist.name: dist for dist in observe(scratch.python).distributions}
    assert found["alpha"].version == "1.0"
    assert "truncated" in (found["alpha"].problem or "")
    assert "cannot be read" in (found["beta"].problem or "")
    assert found["not-a-directory"].problem is not None
    assert found["gamma"].problem is None


def test_env_id_is_the_same_elsewhere_and_changes_with_a_package(clean: Scratch, scratch: Scratch) -> None:
    here, there = (freeze_document(observe(each.python)) for each in (clean, scratch))
    assert here["env_id"] == there["env_id"]
    assert here["place"] != there["place"]
    scratch.install("cowsay", "1.0")
    assert freeze_document(observe(scratch.python))["env_id"] != here["env_id"]
    threads = observe(clean.python, environ={"OMP_NUM_THREADS": "3"})
    assert freeze_document(threads)["env_id"] != freeze_document(observe(clean.python, environ={}))["env_id"]


def test_env_id_holds_no_directory_and_no_stranger_variable(clean: Scratch) -> None:
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/a", "CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "hidden", "HOME": "/b"}
    document = freeze_document(observe(clean.python, environ=environ))
    assert document["env_id"] == freeze_document(observe(clean.python, environ={}))["env_id"]
    assert document["place"]["variables"] == {"TORCHINDUCTOR_CACHE_DIR": "/a", "CUDA_VISIBLE_DEVICES": "1"}
    assert "hidden" not in json.dumps(document)


def test_nothing_imports_torch() -> None:
    code = "import sys, envguard; envguard.check_project(); envguard.freeze(); sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, env=dict(os.environ), check=False).returncode == 0


@pytest.mark.parametrize("receipt", ["uv-receipt.toml", "pipx_metadata.json"])
def test_a_tool_judges_the_environment_of_the_project(
    receipt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, venv = tmp_path / "tool", tmp_path / ".venv"
    tool.mkdir()
    monkeypatch.setattr("envguard.probes.interpreter.sys.prefix", str(tool))
    assert default_python(venv) is None, "an environment of its own, that of no tool"
    (tool / receipt).touch()
    with pytest.raises(UsageError, match="does not exist: run uv sync --locked, or name an environment"):
        default_python(venv)
    venv.mkdir()
    assert default_python(venv) == venv
