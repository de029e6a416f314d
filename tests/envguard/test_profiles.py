"""Two builds of one version in one environment, by profiles that are uv projects of their own: on an index of our own,
with tiny wheels, and by what this repository declares."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envguard import check_project
from envguard.policy import load_policy
from envguard.report import Report
from tests.envguard.local_index import LocalIndex, publish, serve
from tests.envguard.scratch import find_uv, make_wheel, plain_path, torch_version_file

ROOT = Path(__file__).parents[2]
MINOR = "{}.{}".format(*sys.version_info[:2])

# A build backend in the tree, so that an editable project can be built without an index.
BACKEND = """\
import base64, hashlib, pathlib, zipfile

def _write(directory, tag, files):
    info = "train-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\\nName: train\\nVersion: 1.0\\nRequires-Dist: torch==2.11.0\\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    digest = lambda text: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record = "".join(f"{name},sha256={digest(text)},{len(text)}\\n" for name, text in files.items())
    name = "train-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": record + f"{info}/RECORD,,\\n"}).items():
            archive.writestr(path, text)
    return name

def build_wheel(directory, config_settings=None, metadata_directory=None):
    return _write(directory, "", {"train.py": ""})

def build_editable(directory, config_settings=None, metadata_directory=None):
    return _write(directory, "", {"_train.pth": str(pathlib.Path.cwd() / "src") + "\\n"})
"""

PYPROJECT = """\
[project]
name = "train"
version = "1.0"
requires-python = "=={minor}.*"
dependencies = ["torch==2.11.0"]

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[[tool.uv.index]]
url = "{plain}"
default = true
"""

PROFILE = """\
[project]
name = "train-cu128"
version = "0"
requires-python = "=={minor}.*"
dependencies = ["train", "torch==2.11.0+cu128"]

[tool.uv]
package = false

[tool.uv.sources]
train = {{ path = "../..", editable = true }}
torch = {{ index = "cu128" }}

[[tool.uv.index]]
url = "{plain}"
default = true

[[tool.uv.index]]
name = "cu128"
url = "{cu128}"
explicit = true
"""

POLICY = """\
schema = 1

[profiles.cu130]
python = "=={minor}.*"

[[profiles.cu130.torch]]
version = "2.11.0+cu130"
cuda = "13.0"

[profiles.cu128]
python = "=={minor}.*"
lock = "profiles/cu128/uv.lock"

[[profiles.cu128.torch]]
version = "2.11.0+cu128"
cuda = "12.8"
"""


@dataclass(frozen=True, kw_only=True)
class TwoBuilds:
    root: Path
    environ: dict[str, str]

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        full = {**self.environ, **environ}
        return subprocess.run(command, cwd=self.root, env=full, capture_output=True, text=True, check=False)

    def envguard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "envguard", *arguments)

    def found(self, profile: str) -> list[tuple[str, str]]:
        report: Report = check_project(self.root, profile, self.venv, tier="standard")
        return [(each.id, each.subject) for each in report.findings]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LocalIndex]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    served = tmp_path / "index"
    for name, version, label, cuda in (
        ("plain", "2.11.0", "+cu130", "13.0"),  # as the public index has it: the label is in version.py only
        ("cu128", "2.11.0+cu128", "+cu128", "12.8"),
    ):
        files = {"torch/__init__.py": "", "torch/version.py": torch_version_file(label, cuda)}
        publish(served, name, make_wheel(wheels, "torch", version, files))
    with serve(served) as running:
        yield running


def make_project(root: Path, index: LocalIndex) -> TwoBuilds:
    values = {"minor": MINOR, "plain": index.index_url("plain"), "cu128": index.index_url("cu128")}
    profile = root / "profiles" / "cu128"
    profile.mkdir(parents=True)
    (root / "src").mkdir()
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(PYPROJECT.format(**values))
    (profile / "pyproject.toml").write_text(PROFILE.format(**values))
    (root / "envguard.toml").write_text(POLICY.format(**values))
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    kept["PATH"] = plain_path(root.parent / "bin")
    private = {"UV_CACHE_DIR": str(root.parent / "uv-cache"), "UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never"}
    return TwoBuilds(root=root, environ={**kept, **private, "UV_PYTHON": sys.executable})


def test_two_builds_are_locked_flipped_and_told_apart(
    tmp_path: Path, index: LocalIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project", index)
    for name, value in project.environ.items():
        monkeypatch.setenv(name, value)
    uv = find_uv()
    for directory in (".", "profiles/cu128"):
        locked = project.run(uv, "lock", "--project", directory)
        assert locked.returncode == 0, locked.stderr
    assert "cu128" not in (project.root / "uv.lock").read_text()
    assert '"2.11.0+cu128"' in (project.root / "profiles" / "cu128" / "uv.lock").read_text()

    for profile, other in (("cu128", "cu130"), ("cu130", "cu128"), ("cu128", "cu130")):
        synced = project.envguard("sync", "--profile", profile, "--apply")
        assert synced.returncode == 0, synced.stdout + synced.stderr
        assert project.found(profile) == []
        assert ("BLD001", "torch") in project.found(other)
        assert {subject for _, subject in project.found(other)} == {"torch"}

    printed = project.envguard("sync", "--profile", "cu130")
    assert printed.returncode == 0
    assert "uv sync --locked" in printed.stdout
    back = project.envguard("sync", "--profile", "cu128")
    assert (back.returncode, back.stdout) == (0, "")
    assert "nothing to do" in back.stderr


def test_locks_are_checked_while_the_index_is_down(tmp_path: Path) -> None:
    served, wheels = tmp_path / "index", tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("plain", "2.11.0"), ("cu128", "2.11.0+cu128")):
        files = {"torch/__init__.py": "", "torch/version.py": torch_version_file()}
        publish(served, name, make_wheel(wheels, "torch", version, files))
    with serve(served) as running:
        project = make_project(tmp_path / "project", running)
        for directory in (".", "profiles/cu128"):
            assert project.run(find_uv(), "lock", "--project", directory).returncode == 0
    for directory in (".", "profiles/cu128"):
        for cache in (tmp_path / "uv-cache", tmp_path / "empty"):
            done = project.run(find_uv(), "lock", "--check", "--project", directory, UV_CACHE_DIR=str(cache))
            assert done.returncode == 0, done.stderr
    path = project.root / "profiles" / "cu128" / "pyproject.toml"
    path.write_text(path.read_text().replace("2.11.0+cu128", "2.12.0+cu128"))
    assert project.run(find_uv(), "lock", "--check", "--project", "profiles/cu128").returncode != 0


def test_this_repository_declares_cu128_as_its_policy_says() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = tomllib.loads((ROOT / "profiles" / "cu128" / "pyproject.toml").read_text())
    profile = load_policy(ROOT / "envguard.toml").profile("cu128", has_driver=False)
    assert own["project"]["requires-python"] == profile.python
    assert f"torch=={profile.torch[0].version}" in own["project"]["dependencies"]
    assert own["dependency-groups"] == root["dependency-groups"]
    for key in ("dependency-metadata", "default-groups", "compile-bytecode"):
        assert own["tool"]["uv"][key] == root["tool"]["uv"][key]
    [index] = own["tool"]["uv"]["index"]
    assert index["explicit"] is True
    assert own["tool"]["uv"]["sources"]["torch"] == {"index": index["name"]}
    assert own["tool"]["uv"]["sources"]["dflash-toolkit"] == {"path": "../..", "editable": True}
    assert own["tool"]["uv"]["package"] is False


def test_cu128_is_skipped_with_its_reason_until_it_has_a_lock() -> None:
    """Delete this test together with the key ``unlocked`` when the lock has been made."""
    skipped = {each.id: each.message for each in check_project(ROOT, "cu128").skipped}
    assert "PyTorch index is in reach" in skipped["LCK004"]
    assert not (ROOT / "profiles" / "cu128" / "uv.lock").exists()
