"""Every kind of drift that the tests inject, in one table: what is done to a sound project, and what must be found.

In: a ``Scratch``. Out: ``DRIFT``, from a kind's name to a ``Drift``; ``judge`` and ``heal`` run the installed command.
The matrix test and the self-test of the drift job go through it.
"""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.envguard import injections as do
from tests.envguard.injections import (
    Inject,
    allow,
    both,
    edit,
    in_policy,
    in_profile,
    own_code,
    unlink,
    uv,
    wheel,
    write,
)
from tests.envguard.scratch import Scratch, torch_version_file


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
    """What a person does where no uv command repairs it (a plain shell comes back by itself); None where the printed
    command does."""

    @property
    def exit_code(self) -> int:
        """Of the command that judges."""
        return 2 if self.refused else {"fail": 1, "error": 3}.get(self.status, 0)


def _nothing(scratch: Scratch) -> None:
    """The project itself stays as it is."""


SOUND = Drift(inject=_nothing, id="", subject="")
"""No drift at all."""


def judge(scratch: Scratch, drift: Drift = SOUND) -> subprocess.CompletedProcess[str]:
    """The installed command, in a shell in which only ``drift`` differs from a plain one."""
    python = ["--python", str(scratch.python)] if drift.names_python else []
    place = ["--project", str(scratch.root), "--profile", drift.profile]
    command = [sys.executable, "-m", "envguard", "check", *place, *python, "--json", *drift.arguments]
    environ = {**scratch.environ, **drift.environ(scratch)}
    return subprocess.run(command, cwd=scratch.root, env=environ, capture_output=True, text=True, check=False)


def heal(scratch: Scratch, drift: Drift, judged: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Repair it as the report says, or as a person has to, and judge again in a plain shell."""
    if drift.undo is not None:
        drift.undo(scratch)
    else:
        repair = json.loads(judged.stdout)["repair"]
        assert repair, f"no repair is printed: {judged.stdout}"
        subprocess.run(repair, shell=True, cwd=scratch.root, env=scratch.environ, check=True, capture_output=True)
    arguments = tuple(each for each in drift.arguments if each != "--gpu")
    return judge(scratch, replace(drift, environ=lambda scratch: {}, arguments=arguments, names_python=True))


CODE = "torch/fx/_symbolic_trace.py"
TODAY = datetime.datetime.now(datetime.UTC).date()
DAY = datetime.timedelta(days=1)

DRIFT: dict[str, Drift] = {
    # ENV: the interpreter.
    "another environment": Drift(
        inject=_nothing,
        id="ENV001",
        subject=sys.executable,
        status="warn",
        names_python=False,
        arguments=("--select", "ENV001"),
        undo=_nothing,
    ),
    "no environment": Drift(
        inject=lambda s: shutil.rmtree(s.root / ".venv"),
        id="ENV001",
        subject="is no interpreter",
        refused=True,
        undo=uv("sync", "--locked"),
    ),
    "wrong Python": Drift(
        inject=edit("envguard.toml", 'python = ">=3.11,<3.14"', 'python = "==3.10.*"'),
        id="ENV002",
        subject="python",
        undo=edit("envguard.toml", 'python = "==3.10.*"', 'python = ">=3.11,<3.14"'),
    ),
    "system site": Drift(
        inject=do.share_system_site,
        id="ENV003",
        subject="pyvenv.cfg",
        environ=lambda s: {"PYTHONNOUSERSITE": "1"},
        undo=do.keep_system_site_out,
    ),
    "user site": Drift(
        inject=do.share_system_site,
        id="ENV003",
        subject="user site",
        also=(("ENV003", "pyvenv.cfg"),),
        environ=do.user_site,
        undo=do.keep_system_site_out,
    ),
    "PYTHONPATH set": Drift(
        inject=_nothing,
        id="ENV004",
        subject="PYTHONPATH",
        status="warn",
        environ=lambda s: {"PYTHONPATH": "/nowhere"},
        undo=_nothing,
    ),
    "PYTHONPYCACHEPREFIX set": Drift(
        inject=_nothing,
        id="ENV004",
        subject="PYTHONPYCACHEPREFIX",
        status="warn",
        environ=lambda s: {"PYTHONPYCACHEPREFIX": str(s.root / "pyc")},
        undo=_nothing,
    ),
    "conda over venv": Drift(
        inject=_nothing, id="ENV005", subject="CONDA_PREFIX", status="warn", environ=do.conda, undo=_nothing
    ),
    "conda environment": Drift(
        inject=lambda s: (s.root / ".venv" / "conda-meta").mkdir(),
        id="ENV005",
        subject="conda-meta",
        status="warn",
        undo=lambda s: (s.root / ".venv" / "conda-meta").rmdir(),
    ),
    "torchrun from elsewhere": Drift(
        inject=_nothing, id="ENV006", subject="torchrun", environ=do.other_launcher, undo=_nothing
    ),
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
        inject=do.move_watched,
        id="LCK003",
        subject="alpha",
        arguments=("--base", "base.lock"),
        undo=lambda s: (s.root / "base.lock").write_bytes((s.root / "uv.lock").read_bytes()),
    ),
    "watched package moved against a commit": Drift(
        inject=do.move_watched_since_commit,
        id="LCK003",
        subject="alpha",
        arguments=("--base", "main"),
        undo=allow("moved"),
    ),
    "base out of reach": Drift(
        inject=do.commit,
        id="LCK003",
        subject="LCK003",
        status="error",
        arguments=("--base", "origin/main"),
        undo=do.fetch_base,
    ),
    "lock of an unlocked profile": Drift(
        inject=do.lock_later,
        id="LCK004",
        subject="uv.lock",
        status="warn",
        profile="later",
        undo=lambda s: (s.root / "later" / "uv.lock").unlink(),
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
    "other label in the metadata": Drift(inject=do.relabel, id="PKG002", subject="beta"),
    "missing": Drift(inject=uv("pip", "uninstall", "beta"), id="PKG001", subject="beta"),
    "missing of a default group": Drift(inject=uv("pip", "uninstall", "gamma"), id="PKG001", subject="gamma"),
    "metadata directory gone": Drift(inject=lambda s: shutil.rmtree(do.info(s, "beta")), id="PKG001", subject="beta"),
    "forbidden": Drift(inject=lambda s: s.install("sglang", "1.0"), id="PKG004", subject="sglang"),
    "forbidden directory": Drift(
        inject=lambda s: (s.site_packages / "sglang_kernel").mkdir(),
        id="PKG004",
        subject="sglang_kernel",
        undo=lambda s: (s.site_packages / "sglang_kernel").rmdir(),
    ),
    "two dist-infos": Drift(inject=do.second_dist_info, id="PKG005", subject="alpha"),
    "empty METADATA": Drift(inject=write("alpha-1.0.dist-info/METADATA", ""), id="PKG006", subject="alpha"),
    "METADATA gone": Drift(inject=unlink("alpha-1.0.dist-info/METADATA"), id="PKG006", subject="alpha"),
    "RECORD gone": Drift(inject=unlink("alpha-1.0.dist-info/RECORD"), id="PKG006", subject="alpha"),
    "RECORD empty": Drift(inject=write("alpha-1.0.dist-info/RECORD", ""), id="PKG006", subject="alpha"),
    "left over from pip": Drift(
        inject=lambda s: (s.site_packages / "~lpha-1.0.dist-info").mkdir(), id="PKG006", subject="~lpha"
    ),
    "requirement unsatisfied": Drift(
        inject=both(allow("needy"), wheel("needy", "1.0", {"needy.py": ""}, "beta>=2")),
        id="PKG007",
        subject="needy",
        undo=uv("sync", "--locked"),
    ),
    "requirement absent": Drift(
        inject=both(allow("needy"), wheel("needy", "1.0", {"needy.py": ""}, "nothing-here>=2")),
        id="PKG007",
        subject="needy",
        undo=uv("sync", "--locked"),
    ),
    "installed from a file": Drift(inject=do.editable, id="PKG008", subject="beta"),
    "family out of step": Drift(
        inject=both(
            allow("flashinfer-*"),
            wheel("flashinfer-python", "0.6.14", {"flashinfer/__init__.py": ""}),
            wheel("flashinfer-cubin", "0.6.13", {"flashinfer_cubin/__init__.py": ""}),
        ),
        id="PKG009",
        subject="flashinfer-cubin",
        undo=uv("sync", "--locked"),
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
    "other do.commit of torch": Drift(
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
        inject=both(do.record, wheel("beta", "1.0", {"beta/__init__.py": "version = '1.0'  # rebuilt\n"})),
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
    "module linked with another CUDA": Drift(
        inject=do.linked_with_cuda("libcudart.so.12"),
        id="CUD002",
        subject="ext",
        undo=lambda s: shutil.rmtree(s.site_packages / "ext"),
    ),
    "driver too old": Drift(
        inject=in_profile('driver = ">=9999"'),
        id="CUD003",
        subject="driver",
        environ=do.driver("550.54.14"),
        undo=_nothing,
    ),
    "cuDNN of the system first": Drift(
        inject=both(allow("nvidia-*"), wheel("nvidia-cudnn-cu13", "9.19.0.56", {"nvidia/cudnn/lib/libcudnn.so.9": ""})),
        id="CUD004",
        subject="libcudnn.so.9",
        status="warn",
        environ=do.system_library,
        undo=_nothing,
    ),
    "nvcc of another CUDA": Drift(
        inject=in_profile("jit = true"),
        id="CUD005",
        subject="nvcc",
        status="warn",
        environ=do.toolkit,
        undo=edit("envguard.toml", "jit = true", ""),
    ),
    "GPU that torch cannot use": Drift(
        inject=_nothing, id="CUD006", subject="torch", arguments=("--gpu",), environ=do.driver("9999.1"), undo=_nothing
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
    "one file of two owners": Drift(
        inject=do.twins, id="INT004", subject="twin-a, twin-b", undo=uv("sync", "--locked")
    ),
    "one of two owners uninstalled": Drift(
        inject=both(do.twins, uv("pip", "uninstall", "twin-b")),
        id="INT001",
        subject="twin-a",
        undo=uv("sync", "--locked"),
    ),
    "leftover namespace directory": Drift(
        inject=write("triton/backends/__init__.py", ""),
        id="INT005",
        subject="triton/",
        status="warn",
        undo=lambda s: shutil.rmtree(s.site_packages / "triton"),
    ),
    "stray module": Drift(
        inject=write("stray.py", ""), id="INT005", subject="stray.py", status="warn", undo=unlink("stray.py")
    ),
    "stray .pth": Drift(inject=write("stray.pth", "import sys\n"), id="INT006", subject="stray.pth"),
    "sitecustomize": Drift(inject=write("sitecustomize.py", ""), id="INT006", subject="sitecustomize.py"),
    "unchecked bytecode": Drift(
        inject=do.unchecked_bytecode,
        id="INT007",
        subject=f"torch/fx/__pycache__/_symbolic_trace.{sys.implementation.cache_tag}.pyc",
        status="warn",
        arguments=("--deep",),
        undo=lambda s: shutil.rmtree(s.site_packages / "torch" / "fx" / "__pycache__"),
    ),
    # SHD: what an import resolves to.
    "PYTHONPATH shadows": Drift(
        inject=_nothing,
        id="SHD001",
        subject="alpha",
        also=(("ENV004", "PYTHONPATH"),),
        environ=do.shadow,
        undo=_nothing,
    ),
    # SRC: the project's own code.
    "own code other than recorded": Drift(
        inject=both(own_code("a = 1\n"), in_policy('source = ["src"]'), do.record, own_code("a = 2\n")),
        id="SRC001",
        subject="src",
        undo=own_code("a = 1\n"),
    ),
    "own code not committed": Drift(
        inject=both(own_code("a = 1\n"), in_policy('source = ["src"]'), do.commit, own_code("a = 2\n")),
        id="SRC002",
        subject="src",
        status="warn",
        undo=own_code("a = 1\n"),
    ),
    "remote code unpinned": Drift(
        inject=both(own_code("load(trust_remote_code=True)\n"), in_policy('source = ["src"]'), do.commit),
        id="SRC003",
        subject="src/model.py:1",
        undo=both(own_code(""), do.commit),
    ),
    # RUN: variables that change numbers.
    "numerics variable set": Drift(
        inject=_nothing,
        id="RUN001",
        subject="NVIDIA_TF32_OVERRIDE",
        status="warn",
        environ=lambda s: {"NVIDIA_TF32_OVERRIDE": "1"},
        undo=_nothing,
    ),
    "denied variable set": Drift(
        inject=in_profile('env = { deny = ["MY_*"] }'),
        id="RUN001",
        subject="MY_SWITCH",
        environ=lambda s: {"MY_SWITCH": "1"},
        undo=_nothing,
    ),
    "required variable absent": Drift(
        inject=in_profile('env = { require = { MY_SWITCH = "1" } }'),
        id="RUN001",
        subject="MY_SWITCH",
        undo=edit("envguard.toml", "env = { require", "# env = { require"),
    ),
    # POL: the policy itself.
    "expired waiver": Drift(
        inject=do.waiver(TODAY - DAY), id="POL001", subject="PKG003 cowsay", undo=do.without_waiver
    ),
    "unused waiver": Drift(
        inject=do.waiver(TODAY + DAY), id="POL002", subject="PKG003 cowsay", status="warn", undo=do.without_waiver
    ),
    "waived": Drift(
        inject=both(do.waiver(TODAY + DAY), lambda s: s.install("cowsay", "1.0")),
        id="PKG003",
        subject="cowsay",
        status="waived",
        undo=both(do.without_waiver, uv("sync", "--locked")),
    ),
    "unknown key in the policy": Drift(
        inject=edit("envguard.toml", "forbid =", "forbiden ="),
        id="POL003",
        subject="distributions.forbiden",
        refused=True,
        undo=edit("envguard.toml", "forbiden =", "forbid ="),
    ),
}
