"""A scratch uv project with tiny wheels, its own policy and its own virtual environment: real drift in milliseconds.

In: a directory. Out: a ``Scratch`` whose environment uv has synced from a lock, without any index. uv gets a cache of
its own and copies files, so that no edit here can reach the cache of the machine.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

GIT_VERSION = "0123456789abcdef0123456789abcdef01234567"

PYPROJECT = """\
[project]
name = "scratch-project"
version = "1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["alpha==1.0", "torch==2.11.0", "old-python==1; python_version < '3.11'"]

[project.optional-dependencies]
extra = ["delta==1.0"]

[dependency-groups]
dev = ["gamma==1.0"]
docs = ["epsilon==1.0"]

[tool.uv]
package = false
no-index = true
find-links = ["wheels"]
"""

POLICY = f"""\
schema = 1

[distributions]
unexpected = "fail"
allow = ["pip"]
forbid = ["sglang*"]
watched = ["torch", "alpha"]

[auto]
with-driver = "gpu"
without-driver = "cpu"

[profiles.cpu]
python = ">=3.11,<3.14"

[[profiles.cpu.torch]]
version = "2.11.0+cu130"
cuda = "13.0"
git-version = "{GIT_VERSION}"

[profiles.gpu]
python = ">=3.11,<3.14"
driver = ">=580"

[profiles.later]
python = "==3.10.*"
lock = "later/uv.lock"
unlocked = "its index is out of reach"
"""


def torch_version_file(label: str = "+cu130", cuda: str = "13.0", git: str = GIT_VERSION) -> str:
    """The text of a ``torch/version.py`` in the form that torch 2.11 has."""
    return (
        "from typing import Optional\n"
        f"__version__ = '2.11.0{label}'\ndebug = False\ncuda: Optional[str] = '{cuda}'\n"
        f"git_version = '{git}'\nhip: Optional[str] = None\n"
    )


def make_wheel(directory: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> Path:
    """Write a pure wheel; ``files`` maps paths to text."""
    info = f"{name}-{version}.dist-info"
    requirements = "".join(f"Requires-Dist: {each}\n" for each in requires)
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}\nText.\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_record_hash(text)},{len(text.encode())}\n" for path, text in content.items()]
    content[f"{info}/RECORD"] = "".join(lines) + f"{info}/RECORD,,\n"
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return wheel


def console_script(name: str, version: str, command: str) -> dict[str, str]:
    """The file of a wheel that declares ``command``."""
    text = f"[gui_scripts]\nwindow = {name}:main\n\n[console_scripts]\n{command} = {name}:main\n"
    return {f"{name}-{version}.dist-info/entry_points.txt": text}


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


TRACE = "torch/fx/_symbolic_trace.py"
"""The module that people edit in place so that a compiled function can be traced again."""
TORCH_FILES = {
    "torch/__init__.py": "from torch import version\n",
    "torch/version.py": torch_version_file(),
    "torch/fx/__init__.py": "",
    TRACE: "_flag = False\n\n\ndef is_fx_symbolic_tracing():\n    return _flag\n",
    "torch/lib/data.bin": "0123456789",
}
"""What stands for torch: small, with files of every kind that a check looks at."""


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """One project and its environment."""

    root: Path
    cache: Path
    link_mode: str = "copy"

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        [found] = (self.root / ".venv" / "lib").glob("python*/site-packages")
        return found

    @property
    def environ(self) -> dict[str, str]:
        """A process environment in which uv touches only this project, and in which no other environment is active."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        private = {"UV_CACHE_DIR": str(self.cache), "UV_LINK_MODE": self.link_mode, "UV_PYTHON_DOWNLOADS": "never"}
        own = {"XDG_CACHE_HOME": str(self.cache.parent / "user-cache"), "PATH": plain_path(self.cache.parent / "bin")}
        return {**kept, **private, **own, "UV_OFFLINE": "1"}

    def uv(self, *arguments: str) -> None:
        """Run uv in the project; a failure fails the test with uv's own words."""
        done = subprocess.run(
            [find_uv(), *arguments], cwd=self.root, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def install(self, name: str, version: str, wheels: str = "wheels", *options: str) -> None:
        """``uv pip install`` of one of the tiny wheels, as a person would do by hand."""
        place = str(self.root / wheels)
        self.uv("pip", "install", "--no-deps", "--no-index", "--find-links", place, *options, f"{name}=={version}")

    def copy(self, root: Path) -> Scratch:
        """An independent copy: the environment's files are its own."""
        shutil.copytree(self.root, root, symlinks=True)
        return Scratch(root=root, cache=self.cache)


def plain_path(directory: Path) -> str:
    """A PATH with uv, git and the system's programs, and with no environment that is active here."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("uv", "git"):
        program = find_uv() if name == "uv" else name
        if (found := shutil.which(program)) and not (directory / name).exists():
            (directory / name).symlink_to(found)
    return os.pathsep.join([str(directory), "/usr/bin", "/bin"])


def find_uv() -> str:
    """uv beside the running interpreter, else from PATH."""
    inside = Path(sys.executable).parent / "uv"
    return str(inside) if inside.is_file() else "uv"


def make_scratch(root: Path, cache: Path, python: str = sys.executable) -> Scratch:
    """Build wheels, lock and sync, with ``python``."""
    wheels = root / "wheels"
    wheels.mkdir(parents=True)
    for name in ("alpha", "beta", "gamma", "delta", "epsilon", "cowsay", "sglang"):
        requires = ("beta==1.0",) if name == "alpha" else ()
        for version in ("1.0", "2.0"):
            make_wheel(wheels, name, version, {f"{name}/__init__.py": f"version = {version!r}\n"}, requires)
    for name in ("alpha", "thief"):  # two owners of one command
        requires = ("beta==1.0",) if name == "alpha" else ()
        make_wheel(wheels, name, "1.0", {f"{name}/__init__.py": "", **console_script(name, "1.0", "say")}, requires)
    make_wheel(wheels, "old_python", "1", {"old_python.py": ""})
    make_wheel(wheels, "torch", "2.11.0", TORCH_FILES)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "envguard.toml").write_text(POLICY)
    scratch = Scratch(root=root, cache=cache)
    scratch.uv("lock", "--python", python)
    scratch.uv("sync", "--locked", "--python", python)
    return scratch
