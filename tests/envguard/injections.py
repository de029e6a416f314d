"""What a person, an installer or a disk does to a sound project: the single changes that ``kinds.py`` combines.

In: a ``Scratch``, and where a change has a parameter, a function that returns the change. Out: nothing; the project's
files are changed. Everything happens in a real environment that uv has made; only a driver and a toolkit, which no test
machine can be given, are small stand-ins on PATH.
"""

from __future__ import annotations

import datetime
import json
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.envguard.scratch import Scratch, make_wheel

Inject = Callable[[Scratch], object]


def info(scratch: Scratch, name: str) -> Path:
    return next(scratch.site_packages.glob(f"{name}-*.dist-info"))


def write(path: str, text: str) -> Inject:
    """Write a file in site-packages, with the directories it needs."""

    def change(scratch: Scratch) -> None:
        place = scratch.site_packages / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return change


def unlink(path: str) -> Inject:
    return lambda s: (s.site_packages / path).unlink()


def edit(name: str, old: str, new: str) -> Inject:
    """Replace text in a file of the project."""

    def change(scratch: Scratch) -> None:
        path = scratch.root / name
        text = path.read_text()
        assert old in text, f"{old!r} is not in {path}"
        path.write_text(text.replace(old, new, 1))

    return change


def both(*changes: Inject) -> Inject:
    def change(scratch: Scratch) -> None:
        for each in changes:
            each(scratch)

    return change


def allow(*names: str) -> Inject:
    """Let the policy accept distributions that no lock names, so that only the drift itself is found."""
    return edit("envguard.toml", 'allow = ["pip"]', f"allow = {json.dumps(['pip', *names])}")


def in_policy(line: str) -> Inject:
    """Add a top-level key."""
    return edit("envguard.toml", "schema = 1\n", f"schema = 1\n{line}\n")


def in_profile(line: str) -> Inject:
    """Add a key to the profile cpu."""
    return edit("envguard.toml", "[[profiles.cpu.torch]]", f"{line}\n\n[[profiles.cpu.torch]]")


def wheel(name: str, version: str, files: dict[str, str], *requires: str) -> Inject:
    """Build a wheel that the lock does not know and install it."""

    def change(scratch: Scratch) -> None:
        made = scratch.root / "made"
        made.mkdir(exist_ok=True)
        make_wheel(made, name.replace("-", "_"), version, files, requires)
        scratch.install(name, version, "made", "--reinstall")

    return change


def uv(*arguments: str) -> Inject:
    return lambda s: s.uv(*arguments)


def envguard(scratch: Scratch, *arguments: str) -> None:
    command = [sys.executable, "-m", "envguard", *arguments]
    done = subprocess.run(command, cwd=scratch.root, env=scratch.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def record(scratch: Scratch) -> None:
    """Write env.json of the environment as it is, and let the policy compare with it."""
    in_policy('recorded = "env.json"')(scratch)
    envguard(scratch, "freeze", "--python", str(scratch.python), "-o", "env.json")


def commit(scratch: Scratch) -> None:
    """Make the project a git repository in which everything is committed."""
    ignored = scratch.root / ".gitignore"
    ignored.write_text(".venv\n")
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    for command in (["init", "--quiet", "-b", "main"], ["add", "."], [*identity, "commit", "--quiet", "-m", "base"]):
        subprocess.run(["git", *command], cwd=scratch.root, env=scratch.environ, check=True)


def program(scratch: Scratch, name: str, text: str) -> dict[str, str]:
    """A PATH on which the shell script ``name`` comes first."""
    place = scratch.root / "programs"
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{text}\n")
    (place / name).chmod(0o755)
    return {"PATH": f"{place}:{scratch.environ['PATH']}"}


def driver(version: str) -> Callable[[Scratch], dict[str, str]]:
    """An NVIDIA driver of ``version``, where the machine has none: nvidia-smi on PATH."""
    return lambda s: program(s, "nvidia-smi", f"echo {version}")


def relabel(scratch: Scratch) -> None:
    labelled = info(scratch, "beta").rename(scratch.site_packages / "beta-1.0+cu1.dist-info")
    (labelled / "METADATA").write_text("Metadata-Version: 2.1\nName: beta\nVersion: 1.0+cu1\n")
    (labelled / "RECORD").write_text(
        "beta/__init__.py,,\n" + "".join(f"{labelled.name}/{each.name},,\n" for each in labelled.iterdir())
    )


def second_dist_info(scratch: Scratch) -> None:
    second = scratch.site_packages / "alpha-0.9.dist-info"
    shutil.copytree(info(scratch, "alpha"), second)
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: alpha\nVersion: 0.9\n")
    (second / "RECORD").write_text("".join(f"{second.name}/{each.name},,\n" for each in second.iterdir()))


def twins(scratch: Scratch) -> None:
    allow("twin-*")(scratch)
    for name in ("twin-a", "twin-b"):
        wheel(name, "1.0", {f"{name.replace('-', '_')}.py": "", "shared/thing.py": f"owner = {name!r}\n"})(scratch)


def shadow(scratch: Scratch) -> dict[str, str]:
    place = scratch.root / "elsewhere"
    (place / "alpha").mkdir(parents=True, exist_ok=True)
    (place / "alpha" / "__init__.py").write_text("")
    return {"PYTHONPATH": str(place)}


def unchecked_bytecode(scratch: Scratch) -> None:
    other = scratch.root / "other.py"
    other.write_text("flag = True\n")
    source = scratch.site_packages / "torch" / "fx" / "_symbolic_trace.py"
    tag = sys.implementation.cache_tag
    target = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), cfile=str(target), dfile=str(source), doraise=True, invalidation_mode=mode)


def move_watched(scratch: Scratch) -> None:
    shutil.copy(scratch.root / "uv.lock", scratch.root / "base.lock")
    edit("pyproject.toml", '"alpha==1.0"', '"alpha==2.0"')(scratch)
    scratch.uv("lock")
    scratch.uv("sync", "--locked")


def move_watched_since_commit(scratch: Scratch) -> None:
    commit(scratch)
    move_watched(scratch)


def lock_later(scratch: Scratch) -> None:
    """Give the profile that is declared unlocked a lock."""
    later = scratch.root / "later"
    later.mkdir()
    edit("envguard.toml", 'python = "==3.10.*"', 'python = ">=3.11,<3.14"')(scratch)
    shutil.copy(scratch.root / "uv.lock", later)
    text = (scratch.root / "pyproject.toml").read_text()
    (later / "pyproject.toml").write_text(text)
    shutil.copytree(scratch.root / "wheels", later / "wheels")


def editable(scratch: Scratch) -> None:
    """beta from a checkout: the same version, other code."""
    checkout = scratch.root / "checkout"
    checkout.mkdir()
    made = make_wheel(checkout, "beta", "1.0", {"beta/__init__.py": "version = '1.0'\n"})
    scratch.uv("pip", "install", "--no-deps", "--no-index", "--reinstall", str(made))


def own_code(text: str) -> Inject:
    def change(scratch: Scratch) -> None:
        (scratch.root / "src").mkdir(exist_ok=True)
        (scratch.root / "src" / "model.py").write_text(text)

    return change


def waiver(expires: datetime.date) -> Inject:
    text = (
        f'[[waivers]]\ncheck = "PKG003"\nmatch = "cowsay"\nreason = "debugging"\nowner = "team"\nexpires = {expires}\n'
    )
    return edit("envguard.toml", "[auto]", f"{text}\n[auto]")


def without_waiver(scratch: Scratch) -> None:
    path = scratch.root / "envguard.toml"
    before, _, after = path.read_text().partition("[[waivers]]")
    path.write_text(before + "[auto]" + after.partition("[auto]")[2])


def fetch_base(scratch: Scratch) -> None:
    """As ``git fetch`` would bring the base branch."""
    command = ["git", "update-ref", "refs/remotes/origin/main", "HEAD"]
    subprocess.run(command, cwd=scratch.root, env=scratch.environ, check=True)


def toolkit(scratch: Scratch) -> dict[str, str]:
    home = scratch.root / "cuda"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}')
    (home / "bin" / "nvcc").write_text("")
    return {"CUDA_HOME": str(home)}


def system_library(scratch: Scratch) -> dict[str, str]:
    place = scratch.root / "lib"
    place.mkdir(exist_ok=True)
    (place / "libcudnn.so.9").write_text("")
    return {"LD_LIBRARY_PATH": str(place)}


def conda(scratch: Scratch) -> dict[str, str]:
    (scratch.root / "conda").mkdir(exist_ok=True)
    return {"CONDA_PREFIX": str(scratch.root / "conda")}


def user_site(scratch: Scratch) -> dict[str, str]:
    base = scratch.root / "user"
    place = base / "lib" / scratch.site_packages.parent.name / "site-packages"
    place.mkdir(parents=True, exist_ok=True)
    (place / "stranger.py").write_text("")
    return {"PYTHONUSERBASE": str(base)}


def other_launcher(scratch: Scratch) -> dict[str, str]:
    return program(scratch, "torchrun", "exec python3 -m torch.distributed.run")


def linked_with_cuda(soname: str) -> Inject:
    """A native module that needs ``soname``, linked for real."""

    def change(scratch: Scratch) -> None:
        build = scratch.root / "native"
        build.mkdir()
        (build / "x.c").write_text("int x(void) { return 1; }\n")
        compiler = shutil.which("cc") or shutil.which("gcc") or "g++"
        stub, module = build / soname.partition(".so")[0], scratch.site_packages / "ext" / "_C.so"
        module.parent.mkdir()
        library = f"{stub}.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", library, "x.c"], cwd=build, check=True
        )
        link = [compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", str(module), "x.c", library]
        subprocess.run(link, cwd=build, check=True)
        edit("envguard.toml", "[auto]", '[files]\nallow-unowned = ["ext*"]\n\n[auto]')(scratch)

    return change


def share_system_site(scratch: Scratch) -> None:
    edit(".venv/pyvenv.cfg", "packages = false", "packages = true")(scratch)


def keep_system_site_out(scratch: Scratch) -> None:
    edit(".venv/pyvenv.cfg", "packages = true", "packages = false")(scratch)
