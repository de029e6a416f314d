"""``docs/envguard.md`` is true: its commands are run in their order, with real uv and git, in an empty directory.

What differs from a reader's machine, all of it: ``ENVGUARD`` is this repository, torch and cowsay are tiny wheels on an
index on the loopback interface, and uv's tools, its cache and the identity of git are the test's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.envguard.local_index import publish, serve
from tests.envguard.scratch import make_wheel, plain_path, torch_version_file

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "envguard.md"
INSTALLS_UV = "python3 -m pip install --quiet uv"
"""The one command that is not run: uv is there, or this test would not be."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: its commands, and the exit code that the page says of each."""

    commands: tuple[tuple[str, int], ...]


def read_blocks(text: str) -> list[Block]:
    return [Block(commands=tuple(split(block))) for block in re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)]


def split(block: str) -> Iterator[tuple[str, int]]:
    """Commands, a here-document with its command; ``# exit N`` at the end of a line is what the page promises."""
    lines = iter(block.splitlines())
    for line in lines:
        command = line
        if marker := re.search(r"<<'(\w+)'$", line):
            for more in lines:
                command += "\n" + more
                if more == marker[1]:
                    break
        promised = re.search(r"#\s*exit (\d+)$", line)
        yield command, int(promised[1]) if promised else 0


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    wheels, served = tmp_path / "wheels", tmp_path / "index"
    wheels.mkdir()
    for version in ("2.11.0", "2.12.0"):
        label = torch_version_file().replace("2.11.0", version)
        publish(
            served, "simple", make_wheel(wheels, "torch", version, {"torch/__init__.py": "", "torch/version.py": label})
        )
    publish(served, "simple", make_wheel(wheels, "cowsay", "6.1", {"cowsay/__init__.py": ""}))
    tools = tmp_path / "tools"
    path = f"{tools / 'bin'}:{plain_path(tmp_path / 'bin')}"
    (tmp_path / "bin" / "python3").symlink_to(
        Path(sys.executable).resolve()
    )  # the Python of a machine without any venv
    with serve(served) as index:
        yield {
            **{name: os.environ[name] for name in ("HOME", "LANG", "SSL_CERT_FILE") if name in os.environ},
            "PATH": path,
            "UV_TOOL_DIR": str(tools),
            "UV_TOOL_BIN_DIR": str(tools / "bin"),
            "UV_INDEX": index.index_url("simple"),
            "UV_PYTHON_DOWNLOADS": "never",
            "ENVGUARD": str(ROOT / "standalone" / "envguard"),
            **{f"GIT_{who}_{what}": "x@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }


def test_every_command_of_the_page_does_what_the_page_says(tmp_path: Path, environ: dict[str, str]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    commands = [each for block in read_blocks(PAGE.read_text()) for each in block.commands]
    assert len(commands) >= 25
    script = ["set -u"]
    for number, (command, promised) in enumerate(commands):
        if command.startswith("ENVGUARD="):
            continue  # the path of the reader's clone
        script += [
            f"echo '>>> {number}'",
            command,
            f'code=$?; [ $code -eq {promised} ] || {{ echo "exit $code"; exit 9; }}',
        ]
    done = run("\n".join(script), home, environ)
    last = commands[int(done.stdout.rpartition(">>> ")[2].split()[0])]
    assert done.returncode == 0, f"{last[0]}: the page says exit {last[1]}\n{done.stdout[-3000:]}"
    for said in ("PKG003", "LCK003", "BLD001", "uv sync --locked", "same: nothing that both sides know differs"):
        assert said in done.stdout

    project = home / "my-training"
    assert job(project, "main", None, tmp_path / "clone-main", environ) == 0
    assert job(project, "refresh", "main", tmp_path / "clone-refresh", environ) == 1
    stale = project / "pyproject.toml"
    stale.write_text(stale.read_text().replace("torch==2.11.0", "torch==2.12.0"))
    run("git commit -qam stale", project, environ)
    assert job(project, "main", None, tmp_path / "clone-stale", environ) == 1


def job(project: Path, branch: str, base: str | None, clone: Path, environ: dict[str, str]) -> int:
    """The steps of the page's workflow on a fresh clone; the exit code of the first that fails."""
    run(f"git clone --quiet --branch {branch} {project} {clone}", project, environ)
    workflow = yaml.safe_load((clone / ".github" / "workflows" / "drift.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["drift"]["steps"] if "run" in step]
    assert commands[0] == INSTALLS_UV
    for command in commands[1:]:
        done = run(command, clone, {**environ, **({"GITHUB_BASE_REF": base} if base else {})})
        if done.returncode != 0:
            assert "::error" in done.stdout or "error: " in done.stdout
            return done.returncode
    return 0


def run(script: str, cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", script]
    return subprocess.run(
        command, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
