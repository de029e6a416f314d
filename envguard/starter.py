"""A first policy for a project: ``envguard init``.

In: a project directory with its ``uv.lock`` and its environment. Out: the commented text of an ``envguard.toml`` that
the project passes as it is now. It accepts the Python that pyproject.toml accepts and the build of torch that is
installed; what it cannot know (drivers, forbidden packages) it shows as comments. It overwrites nothing.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

from envguard.atomic import write_text
from envguard.errors import PolicyError, UsageError
from envguard.pkg import specifier_set
from envguard.policy import FILE_NAME
from envguard.probes.interpreter import find_interpreter
from envguard.probes.torch_build import TorchBuild, read_torch_build

TEMPLATE = """\
# What an environment of this project must be; uv.lock says which packages. `envguard explain ID` tells of each check.
schema = 1

[distributions]
unexpected = "fail"  # what uv.lock does not name: "fail" or "warn"
allow = ["pip", "setuptools", "wheel", "uv"]
# What must never be here, such as serving stacks that move torch; globs.
forbid = []
# Whose files are hashed on every check, and whose version may not move in the lock unless this file changes with it.
watched = ["torch", "transformers", "triton", "tokenizers", "safetensors", "numpy"]

[profiles.{profile}]
python = {python}
lock = "uv.lock"
# driver = ">=580"                        # NVIDIA driver; without it, what torch's CUDA release needs
# packages = {{ transformers = "5.6.0" }}   # pins that hold whatever the lock says
# env = {{ deny = ["PYTHONPATH"] }}         # variables that must not be set
{torch}
# [[waivers]]                             # a finding that is known and accepted, for at most 90 days
# check = "PKG003"
# match = "ipython"
# reason = "debugging"
# owner = "me"
# expires = YYYY-MM-DD
"""

PROFILE = "default"


def write_starter(project: Path) -> tuple[Path, TorchBuild | None]:
    """Write the policy of ``project`` and return its path and the build of torch that it pins.

    Raises:
        UsageError: there is no project with a lock, or a policy is there already.
        ProbeError: the environment or its torch cannot be read.
    """
    path = project / FILE_NAME
    if path.exists():
        raise PolicyError(f"{path} is there already: edit it, or delete it first")
    for name, command in (("pyproject.toml", "uv init"), ("uv.lock", "uv lock")):
        if not (project / name).is_file():
            raise UsageError(
                f"{project} has no {name}: run {command} there first, or name a project with --project DIR"
            )
    venv = project / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")
    if not (venv / "pyvenv.cfg").is_file():
        raise UsageError(
            f"{project} has no environment ({venv}): run uv sync there first, so that its torch can be read"
        )
    build = read_torch_build(find_interpreter(venv).site_packages)
    write_text(path, render(_python(project / "pyproject.toml"), build))
    return path, build


def render(python: str, build: TorchBuild | None) -> str:
    """The text of the policy."""
    return TEMPLATE.format(profile=PROFILE, python=json.dumps(python), torch=_torch(build))


def _torch(build: TorchBuild | None) -> str:
    if build is None:
        return ""
    lines = ["", "# The build that is installed now: package managers do not tell builds of one version apart."]
    lines += [f"[[profiles.{PROFILE}.torch]]", f"version = {json.dumps(build.version)}"]
    if build.cuda:
        lines.append(f"cuda = {json.dumps(build.cuda)}")
    if build.git_version:
        lines.append(f"git-version = {json.dumps(build.git_version)}")
    return "\n".join(lines) + "\n"


def _python(path: Path) -> str:
    """What pyproject.toml accepts; any Python 3 where it says nothing."""
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
        accepted = project.get("requires-python", ">=3")
        if specifier_set(accepted) is None:
            raise UsageError(f"{path}: requires-python is {accepted!r}, which is no version specifier: repair it")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is no valid pyproject.toml: {error}") from error
    return str(accepted)
