"""Every kind of drift that the tests inject, in one table: what is done to a sound project, and what must be found.

In: a ``Scratch``. Out: ``DRIFT``, from a kind's name to a ``Drift``. The matrix test, the repair test and the self-test
of the drift job run it. Everything is injected into a real environment that uv has made; only a driver and a toolkit,
which no test machine can be given, are small stand-ins on PATH.
"""

from __future__ import annotations

import datetime
import json
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.envguard.scratch import Scratch, make_wheel, torch_version_file

ROOT = Path(__file__).parents[2]
Inject = Callable[[Scratch], object]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One kind: how it comes about and the finding that names it."""

    inject: Inject
    id: str
    subject: str
    status: str = "fail"
    also: tuple[tuple[str, str], ...] = ()
    """(id, subject) of what cannot but be found beside it."""
    refused: bool = False
    """Whether nothing is judged: the subject stands in the one line on stderr, and the exit code is 2."""
    arguments: tuple[str, ...] = ()
    environ: Callable[[Scratch], dict[str, str]] = field(default=lambda scratch: {})
    profile: str = "cpu"
    names_python: bool = True
    """Whether the environment is named with --python; else the interpreter that runs envguard is judged."""
    undo: Inject | None = None
    """What a person does where no uv command repairs it; None where the printed command does."""

    @property
    def exit_code(self) -> int:
        return 2 if self.refused else {"fail": 1, "error": 3}.get(self.status, 0)


def judge(scratch: Scratch, drift: Drift | None = None) -> subprocess.CompletedProcess[str]:
    """The installed command, in a shell in which only ``drift`` differs from a plain one."""
    drift = drift or Drift(inject=lambda s: None, id="", subject="")
    python = ["--python", str(scratch.python)] if drift.names_python else []
    place = ["--project", str(scratch.root), "--profile", drift.profile]
    command = [sys.executable, "-m", "envguard", "check", *place, *python, "--json", *drift.arguments]
    environ = {**scratch.environ, **drift.environ(scratch)}
    return subprocess.run(command, cwd=scratch.root, env=environ, capture_output=True, text=True, check=False)


# Small changes.


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


# Larger ones.


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
    path = scratch.root / ".venv" / "pyvenv.cfg"
    path.write_text(
        path.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )


CODE = "torch/fx/_symbolic_trace.py"
TODAY = datetime.datetime.now(datetime.UTC).date()
DAY = datetime.timedelta(days=1)

DRIFT: dict[str, Drift] = {
    # ENV: the interpreter.
    "another environment": Drift(
        inject=lambda s: None,
        id="ENV001",
        subject=sys.executable,
        status="warn",
        names_python=False,
        arguments=("--select", "ENV001"),
    ),
    "no environment": Drift(
        inject=lambda s: shutil.rmtree(s.root / ".venv"), id="ENV001", subject="is no interpreter", refused=True
    ),
    "wrong Python": Drift(
        inject=edit("envguard.toml", 'python = ">=3.11,<3.14"', 'python = "==3.10.*"'),
        id="ENV002",
        subject="python",
        undo=edit("envguard.toml", 'python = "==3.10.*"', 'python = ">=3.11,<3.14"'),
    ),
    "system site": Drift(
        inject=share_system_site, id="ENV003", subject="pyvenv.cfg", environ=lambda s: {"PYTHONNOUSERSITE": "1"}
    ),
    "user site": Drift(
        inject=share_system_site, id="ENV003", subject="user site", also=(("ENV003", "pyvenv.cfg"),), environ=user_site
    ),
    "PYTHONPATH set": Drift(
        inject=lambda s: None,
        id="ENV004",
        subject="PYTHONPATH",
        status="warn",
        environ=lambda s: {"PYTHONPATH": "/nowhere"},
    ),
    "PYTHONPYCACHEPREFIX set": Drift(
        inject=lambda s: None,
        id="ENV004",
        subject="PYTHONPYCACHEPREFIX",
        status="warn",
        environ=lambda s: {"PYTHONPYCACHEPREFIX": str(s.root / "pyc")},
    ),
    "conda over venv": Drift(inject=lambda s: None, id="ENV005", subject="CONDA_PREFIX", status="warn", environ=conda),
    "conda environment": Drift(
        inject=lambda s: (s.root / ".venv" / "conda-meta").mkdir(), id="ENV005", subject="conda-meta", status="warn"
    ),
    "torchrun from elsewhere": Drift(inject=lambda s: None, id="ENV006", subject="torchrun", environ=other_launcher),
    # LCK: the lock.
    "stale lock": Drift(inject=edit("pyproject.toml", '"alpha==1.0"', '"alpha==2.0"'), id="LCK001", subject="uv.lock"),
    "constraint loosened": Drift(
        inject=edit("pyproject.toml", '"alpha==1.0"', '"alpha>=1.0,<2"'), id="LCK001", subject="uv.lock"
    ),
    "lock gone": Drift(inject=lambda s: (s.root / "uv.lock").unlink(), id="LCK002", subject="uv.lock"),
    "lock cut": Drift(
        inject=lambda s: (s.root / "uv.lock").write_text("version = 1\n[[pack"),
        id="LCK002",
        subject="uv.lock",
        undo=lambda s: (s.root / "uv.lock").unlink() or s.uv("lock"),
    ),
    "lock of the future": Drift(
        inject=lambda s: (s.root / "uv.lock").write_text("version = 2\n"),
        id="LCK002",
        subject="uv.lock",
        undo=lambda s: (s.root / "uv.lock").unlink() or s.uv("lock"),
    ),
    "watched package moved against a lock": Drift(
        inject=move_watched, id="LCK003", subject="alpha", arguments=("--base", "base.lock"), undo=allow("moved")
    ),
    "watched package moved against a commit": Drift(
        inject=move_watched_since_commit,
        id="LCK003",
        subject="alpha",
        arguments=("--base", "main"),
        undo=allow("moved"),
    ),
    "base out of reach": Drift(
        inject=commit,
        id="LCK003",
        subject="LCK003",
        status="error",
        arguments=("--base", "origin/main"),
        undo=allow("x"),
    ),
    "lock of an unlocked profile": Drift(
        inject=lock_later, id="LCK004", subject="uv.lock", status="warn", profile="later"
    ),
    # PKG: which distributions.
    "extra": Drift(inject=lambda s: s.install("cowsay", "1.0"), id="PKG003", subject="cowsay"),
    "wrong version": Drift(inject=lambda s: s.install("beta", "2.0"), id="PKG002", subject="beta"),
    "wrong version of an extra": Drift(inject=lambda s: s.install("delta", "2.0"), id="PKG002", subject="delta"),
    "not the pinned version": Drift(
        inject=in_profile("packages = { alpha = '3' }"),
        id="PKG002",
        subject="alpha",
        undo=edit("envguard.toml", "packages = { alpha = '3' }", ""),
    ),
    "other label in the metadata": Drift(inject=relabel, id="PKG002", subject="beta"),
    "missing": Drift(inject=uv("pip", "uninstall", "beta"), id="PKG001", subject="beta"),
    "missing of a default group": Drift(inject=uv("pip", "uninstall", "gamma"), id="PKG001", subject="gamma"),
    "metadata directory gone": Drift(inject=lambda s: shutil.rmtree(info(s, "beta")), id="PKG001", subject="beta"),
    "forbidden": Drift(inject=lambda s: s.install("sglang", "1.0"), id="PKG004", subject="sglang"),
    "forbidden directory": Drift(
        inject=lambda s: (s.site_packages / "sglang_kernel").mkdir(),
        id="PKG004",
        subject="sglang_kernel",
        undo=lambda s: (s.site_packages / "sglang_kernel").rmdir(),
    ),
    "two dist-infos": Drift(inject=second_dist_info, id="PKG005", subject="alpha"),
    "empty METADATA": Drift(inject=write("alpha-1.0.dist-info/METADATA", ""), id="PKG006", subject="alpha"),
    "METADATA gone": Drift(inject=unlink("alpha-1.0.dist-info/METADATA"), id="PKG006", subject="alpha"),
    "RECORD gone": Drift(inject=unlink("alpha-1.0.dist-info/RECORD"), id="PKG006", subject="alpha"),
    "RECORD empty": Drift(inject=write("alpha-1.0.dist-info/RECORD", ""), id="PKG006", subject="alpha"),
    "left over from pip": Drift(
        inject=lambda s: (s.site_packages / "~lpha-1.0.dist-info").mkdir(), id="PKG006", subject="~lpha"
    ),
    "requirement unsatisfied": Drift(
        inject=both(allow("needy"), wheel("needy", "1.0", {"needy.py": ""}, "beta>=2")), id="PKG007", subject="needy"
    ),
    "requirement absent": Drift(
        inject=both(allow("needy"), wheel("needy", "1.0", {"needy.py": ""}, "nothing-here>=2")),
        id="PKG007",
        subject="needy",
    ),
    "installed from a file": Drift(inject=editable, id="PKG008", subject="beta"),
    "family out of step": Drift(
        inject=both(
            allow("flashinfer-*"),
            wheel("flashinfer-python", "0.6.14", {"flashinfer/__init__.py": ""}),
            wheel("flashinfer-cubin", "0.6.13", {"flashinfer_cubin/__init__.py": ""}),
        ),
        id="PKG009",
        subject="flashinfer-cubin",
    ),
    "command gone": Drift(inject=lambda s: (s.python.parent / "say").unlink(), id="PKG010", subject="alpha"),
    "command stolen": Drift(inject=lambda s: s.install("thief", "1.0"), id="PKG003", subject="thief"),
    # BLD: which build.
    "other build of torch": Drift(
        inject=wheel(
            "torch", "2.11.0", {"torch/__init__.py": "", "torch/version.py": torch_version_file("+cu128", "12.8")}
        ),
        id="BLD001",
        subject="torch",
    ),
    "other commit of torch": Drift(
        inject=write("torch/version.py", torch_version_file(git="f" * 40)), id="BLD001", subject="torch"
    ),
    "torch/version.py cut": Drift(
        inject=write("torch/version.py", "__version__ = '2.11"), id="BLD001", subject="torch"
    ),
    "torch labelled cu128, lock plain": Drift(
        inject=wheel(
            "torch", "2.11.0+cu128", {"torch/__init__.py": "", "torch/version.py": torch_version_file("+cu128", "12.8")}
        ),
        id="BLD001",
        subject="torch",
    ),
    "same version, other build": Drift(
        inject=both(record, wheel("beta", "1.0", {"beta/__init__.py": "version = '1.0'  # rebuilt\n"})),
        id="BLD002",
        subject="beta",
    ),
    # CUD: CUDA.
    "cu12 beside cu13": Drift(
        inject=both(allow("nvidia-*"), wheel("nvidia-cuda-runtime-cu12", "12.8.90", {"nvidia/cuda_runtime/x.py": ""})),
        id="CUD001",
        subject="cu12",
    ),
    "cu12 without the suffix": Drift(
        inject=both(allow("nvidia-*"), wheel("nvidia-cublas", "12.8.4.1", {"nvidia/cublas/x.py": ""})),
        id="CUD001",
        subject="cu12",
    ),
    "module linked with another CUDA": Drift(inject=linked_with_cuda("libcudart.so.12"), id="CUD002", subject="ext"),
    "driver too old": Drift(
        inject=in_profile('driver = ">=9999"'), id="CUD003", subject="driver", environ=driver("550.54.14")
    ),
    "cuDNN of the system first": Drift(
        inject=both(allow("nvidia-*"), wheel("nvidia-cudnn-cu13", "9.19.0.56", {"nvidia/cudnn/lib/libcudnn.so.9": ""})),
        id="CUD004",
        subject="libcudnn.so.9",
        status="warn",
        environ=system_library,
    ),
    "nvcc of another CUDA": Drift(
        inject=in_profile("jit = true"), id="CUD005", subject="nvcc", status="warn", environ=toolkit
    ),
    "GPU that torch cannot use": Drift(
        inject=lambda s: None, id="CUD006", subject="torch", arguments=("--gpu",), environ=driver("9999.1")
    ),
    # INT: the installed files.
    "file deleted": Drift(inject=unlink("beta/__init__.py"), id="INT001", subject="beta"),
    "file of another size": Drift(
        inject=write("beta/__init__.py", "version = '1.0' # longer\n"), id="INT001", subject="beta"
    ),
    "file edited": Drift(
        inject=write(CODE, "_flag = False\n\n\ndef is_fx_symbolic_tracing():\n    return False\n"),
        id="INT002",
        subject=CODE,
    ),
    "file edited, same size": Drift(
        inject=write(CODE, "_flag = False\n\n\ndef is_fx_symbolic_tracing():\n    return True \n"),
        id="INT002",
        subject=CODE,
    ),
    "library altered, same size": Drift(
        inject=write("torch/lib/data.bin", "0123456780"), id="INT003", subject="torch", arguments=("--deep",)
    ),
    "one file of two owners": Drift(inject=twins, id="INT004", subject="twin-a, twin-b"),
    "one of two owners uninstalled": Drift(
        inject=both(twins, uv("pip", "uninstall", "twin-b")), id="INT001", subject="twin-a"
    ),
    "leftover namespace directory": Drift(
        inject=write("triton/backends/__init__.py", ""), id="INT005", subject="triton/", status="warn"
    ),
    "stray module": Drift(inject=write("stray.py", ""), id="INT005", subject="stray.py", status="warn"),
    "stray .pth": Drift(inject=write("stray.pth", "import sys\n"), id="INT006", subject="stray.pth"),
    "sitecustomize": Drift(inject=write("sitecustomize.py", ""), id="INT006", subject="sitecustomize.py"),
    "unchecked bytecode": Drift(
        inject=unchecked_bytecode,
        id="INT007",
        subject=f"torch/fx/__pycache__/_symbolic_trace.{sys.implementation.cache_tag}.pyc",
        status="warn",
        arguments=("--deep",),
    ),
    # SHD: what an import resolves to.
    "PYTHONPATH shadows": Drift(
        inject=lambda s: None, id="SHD001", subject="alpha", also=(("ENV004", "PYTHONPATH"),), environ=shadow
    ),
    # SRC: the project's own code.
    "own code other than recorded": Drift(
        inject=both(own_code("a = 1\n"), in_policy('source = ["src"]'), record, own_code("a = 2\n")),
        id="SRC001",
        subject="src",
    ),
    "own code not committed": Drift(
        inject=both(own_code("a = 1\n"), in_policy('source = ["src"]'), commit, own_code("a = 2\n")),
        id="SRC002",
        subject="src",
        status="warn",
    ),
    "remote code unpinned": Drift(
        inject=both(own_code("load(trust_remote_code=True)\n"), in_policy('source = ["src"]'), commit),
        id="SRC003",
        subject="src/model.py:1",
    ),
    # RUN: variables that change numbers.
    "numerics variable set": Drift(
        inject=lambda s: None,
        id="RUN001",
        subject="NVIDIA_TF32_OVERRIDE",
        status="warn",
        environ=lambda s: {"NVIDIA_TF32_OVERRIDE": "1"},
    ),
    "denied variable set": Drift(
        inject=in_profile('env = { deny = ["MY_*"] }'),
        id="RUN001",
        subject="MY_SWITCH",
        environ=lambda s: {"MY_SWITCH": "1"},
    ),
    "required variable absent": Drift(
        inject=in_profile('env = { require = { MY_SWITCH = "1" } }'), id="RUN001", subject="MY_SWITCH"
    ),
    # POL: the policy itself.
    "expired waiver": Drift(inject=waiver(TODAY - DAY), id="POL001", subject="PKG003 cowsay"),
    "unused waiver": Drift(inject=waiver(TODAY + DAY), id="POL002", subject="PKG003 cowsay", status="warn"),
    "waived": Drift(
        inject=both(waiver(TODAY + DAY), lambda s: s.install("cowsay", "1.0")),
        id="PKG003",
        subject="cowsay",
        status="waived",
    ),
    "unknown key in the policy": Drift(
        inject=edit("envguard.toml", "forbid =", "forbiden ="),
        id="POL003",
        subject="distributions.forbiden",
        refused=True,
    ),
}
