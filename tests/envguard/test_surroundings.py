"""What lies around an environment, brought about for real: variables, conda, PATH, user site, libraries, nvcc, git."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard import check_project
from envguard.checks.system import runs_on
from envguard.findings import Finding, run_checks
from envguard.frozen import replace
from envguard.guard import freeze, inspect
from envguard.inspection import Inspection
from envguard.probes.smoke import smoke_test
from envguard.probes.source import find_remote_code
from envguard.registry import CHECKS
from tests.envguard.scratch import Scratch


def findings(scratch: Scratch) -> list[Finding]:
    return list(check_project(scratch.root, "cpu", scratch.python, tier="standard").findings)


def told(scratch: Scratch) -> list[tuple[str, str, str]]:
    return [(each.id, each.subject, each.status) for each in findings(scratch)]


def reason(scratch: Scratch, check_id: str) -> str:
    skipped = check_project(scratch.root, "cpu", scratch.python, tier="standard").skipped
    return next(each.message for each in skipped if each.id == check_id)


def edit_policy(scratch: Scratch, old: str, new: str) -> None:
    path = scratch.root / "envguard.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def in_profile(scratch: Scratch, line: str) -> None:
    edit_policy(scratch, "[profiles.cpu]\n", f"[profiles.cpu]\n{line}\n")


# ENV003


def share_system_site(scratch: Scratch) -> None:
    path = scratch.root / ".venv" / "pyvenv.cfg"
    text = path.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    path.write_text(text)


def test_system_site_packages_fail(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    share_system_site(scratch)
    assert told(scratch) == [("ENV003", "pyvenv.cfg", "fail")]


def test_a_user_site_fails_only_where_something_is_in_it(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = Path(os.path.realpath(scratch.python))  # outside of any environment the user's site is on
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))

    def judge() -> list[str]:
        report = check_project(scratch.root, "cpu", base, select=["ENV003"])
        return [f"{each.subject} {each.status}" for each in (*report.findings, *report.skipped)]

    assert judge() == ["ENV003 skip"]
    minor = "python{}.{}".format(*__import__("sys").version_info[:2])
    site = tmp_path / "user" / "lib" / minor / "site-packages"
    site.mkdir(parents=True)
    assert judge() == ["ENV003 skip"]
    (site / "torch").mkdir()
    assert judge() == ["user site fail"]
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    assert judge() == []


# ENV004, RUN001


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX"])
def test_a_redirecting_variable_warns_unless_it_is_ruled(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "/nonexistent")
    report = check_project(scratch.root, "cpu", scratch.python, select=["ENV004", "RUN001"])
    assert [(each.id, each.subject, each.status) for each in report.findings] == [("ENV004", name, "warn")]
    in_profile(scratch, f"env = {{ deny = ['{name}'] }}")
    report = check_project(scratch.root, "cpu", scratch.python, select=["ENV004", "RUN001"])
    assert [(each.id, each.subject, each.status) for each in report.findings] == [("RUN001", name, "fail")]
    edit_policy(scratch, "deny", "allow")
    assert check_project(scratch.root, "cpu", scratch.python, select=["ENV004", "RUN001"]).findings == ()


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("NVIDIA_TF32_OVERRIDE", True),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", True),
        ("CUBLAS_WORKSPACE_CONFIG", True),
        ("FLA_DISABLE_BACKEND_DISPATCH", True),
        ("TRITON_F32_DEFAULT", True),
        ("TORCHINDUCTOR_EMULATE_PRECISION_CASTS", True),
        ("TORCHINDUCTOR_CACHE_DIR", False),
        ("TORCH_LOGS", False),
        ("PYTORCH_CUDA_ALLOC_CONF", False),
        ("OMP_NUM_THREADS", False),
        ("CUDA_VISIBLE_DEVICES", False),
    ],
)
def test_variables_that_change_numbers_warn(
    clean: Scratch, monkeypatch: pytest.MonkeyPatch, name: str, is_told: bool
) -> None:
    monkeypatch.setenv(name, "1")
    assert told(clean) == ([("RUN001", name, "warn")] if is_told else [])


def test_rules_about_variables_fail(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = "env = { deny = ['LD_PRE*', 'MY_*'], require = { WANTED = 'yes' }, allow = ['TORCH_X'] }"
    in_profile(scratch, rules)
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("TORCH_X", "1")
    found = findings(scratch)
    assert [(each.id, each.subject, each.status) for each in found] == [
        ("RUN001", "MY_TOKEN", "fail"),
        ("RUN001", "WANTED", "fail"),
    ]
    assert "secret" not in repr(found)
    monkeypatch.delenv("MY_TOKEN")
    monkeypatch.setenv("WANTED", "no")
    assert [(each.subject, each.expected, each.observed) for each in findings(scratch)] == [("WANTED", "yes", "no")]
    monkeypatch.setenv("WANTED", "yes")
    assert findings(scratch) == []


def test_the_recorded_environment_is_the_measure(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    (scratch.root / "env.json").write_text(json.dumps(freeze(scratch.python, project=scratch.root)))
    edit_policy(scratch, "schema = 1\n", 'schema = 1\nrecorded = "env.json"\n')
    select = {"select": ["RUN001"]}

    def judge() -> list[tuple[str, str | None, str | None]]:
        report = check_project(scratch.root, "cpu", scratch.python, **select)  # type: ignore[arg-type]
        return [(each.subject, each.expected, each.observed) for each in report.findings]

    assert judge() == []
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert judge() == [("NVIDIA_TF32_OVERRIDE", "0", "1")]
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    monkeypatch.setenv("FLA_X", "1")
    assert judge() == [("FLA_X", "not set", "1"), ("NVIDIA_TF32_OVERRIDE", "0", None)]


# ENV005


def test_conda_over_and_under_an_environment(scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert told(scratch) == [("ENV005", "CONDA_PREFIX", "warn")]
    monkeypatch.setenv("CONDA_PREFIX", str(scratch.root / ".venv"))
    assert told(scratch) == []
    (scratch.root / ".venv" / "conda-meta").mkdir()
    assert told(scratch) == [("ENV005", "conda-meta", "warn")]


# ENV006


@pytest.mark.parametrize("name", ["torchrun", "accelerate", "deepspeed"])
def test_a_launcher_from_elsewhere(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    bin_directory = scratch.python.parent
    elsewhere = tmp_path / "bin"
    elsewhere.mkdir()
    (elsewhere / name).write_text("#!/bin/sh\n")
    (elsewhere / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    [finding] = findings(scratch)
    assert (finding.id, finding.subject, finding.observed) == ("ENV006", name, str(elsewhere / name))
    (bin_directory / name).write_text("#!/bin/sh\n")
    (bin_directory / name).chmod(0o755)
    assert told(scratch) == [("ENV006", name, "fail")]
    monkeypatch.setenv("PATH", f"{bin_directory}:{os.environ['PATH']}")
    assert told(scratch) == []
    (elsewhere / name).unlink()
    (elsewhere / name).symlink_to(bin_directory / name)
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    assert told(scratch) == []  # it is the environment's own, under another name


def test_a_launcher_is_nothing_to_an_environment_that_launches_nothing(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deepspeed").write_text("#!/bin/sh\n")
    (tmp_path / "deepspeed").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scratch.uv("pip", "uninstall", "torch")
    assert "ENV006" not in {check_id for check_id, _, _ in told(scratch)}
    assert reason(scratch, "ENV006") == "the environment launches no workers"


# CUD004, CUD005


def bring(scratch: Scratch, *names: str) -> None:
    """Files of the environment itself, as the nvidia wheels lay them out."""
    directory = scratch.site_packages / "nvidia" / "cu13" / "lib"
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_bytes(b"")


def cuda(scratch: Scratch) -> list[tuple[str, str, str]]:
    report = check_project(scratch.root, "cpu", scratch.python, tier="standard", select=["CUD004", "CUD005"])
    return [(each.id, each.subject, each.message.partition(" offers")[0]) for each in report.findings]


def test_libraries_that_stand_before_the_environments_own(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bring(scratch, "libcudart.so.13", "libcudnn.so.9", "libcudnn_ops.so.9", "libnccl.so.2")
    library = tmp_path / "lib"
    library.mkdir()
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(
        "#!/bin/sh\ncat <<'END'\n3 libs found\n\tlibcudnn_ops.so.9 (libc6,x86-64) => /x/libcudnn_ops.so.9\n"
        "\tlibcudnn.so.9 (libc6,x86-64) => /x/libcudnn.so.9\n"
        "\tlibcudart.so.13 (libc6,x86-64) => /x/libcudart.so.13\n\tlibcudnn.so.8 (libc6) => /x/libcudnn.so.8\nEND\n"
    )
    ldconfig.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nonexistent:{library}")
    assert cuda(scratch) == [("CUD004", "libcudnn_ops.so.9", "ldconfig")], "one place is one finding"
    (library / "libcudnn.so.9.1.2").write_bytes(b"")
    (library / "libcudart.so.12").write_bytes(b"")  # of another major release, which nobody takes for ours
    assert ("CUD004", "libcudnn.so.9", "LD_LIBRARY_PATH") in cuda(scratch)
    monkeypatch.setenv("LD_PRELOAD", "/y/libnccl.so.2.1 /z/libjemalloc.so.2")
    assert cuda(scratch) == [
        ("CUD004", "libnccl.so.2", "LD_PRELOAD"),
        ("CUD004", "libcudnn.so.9", "LD_LIBRARY_PATH"),
        ("CUD004", "libcudnn_ops.so.9", "ldconfig"),
    ]
    monkeypatch.delenv("LD_PRELOAD")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(scratch.site_packages / "nvidia" / "cu13" / "lib"))
    assert cuda(scratch) == [("CUD004", "libcudnn_ops.so.9", "ldconfig")]


def test_an_ldconfig_that_fails_is_no_pass(scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ldconfig").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ldconfig").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    report = check_project(scratch.root, "cpu", scratch.python, tier="standard", select=["CUD004"])
    assert [each.status for each in report.findings] == ["error"]


def test_nvcc_has_to_fit_where_the_profile_compiles(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nvcc(release: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        path = tmp_path / "bin" / "nvcc"
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
        path.chmod(0o755)

    nvcc("12.8")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cuda(scratch) == []
    in_profile(scratch, "jit = true")
    [(check_id, subject, message)] = cuda(scratch)
    assert (check_id, subject) == ("CUD005", "nvcc")
    assert "is of CUDA 12.8, and torch was built with CUDA 13.0" in message
    nvcc("13.2")
    assert cuda(scratch) == []
    (tmp_path / "version.json").write_text('{"cuda": {"version": "12.6.1"}}')
    assert "is of CUDA 12.6" in cuda(scratch)[0][2]
    (tmp_path / "version.json").write_text("{")
    assert check_project(scratch.root, "cpu", scratch.python, tier="standard", select=["CUD005"]).exit_code == 3
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", str(scratch.python.parent))
    assert "there is no nvcc" in cuda(scratch)[0][2]


# CUD006


def fake_python(directory: Path, body: str) -> Path:
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def smoked(clean: Scratch, python: Path, timeout: float = 20.0) -> list[tuple[str, str]]:
    """CUD006 of a machine with a driver, where ``python`` answers for torch."""
    case = inspect(clean.root, "cpu", clean.python, tier="fast")
    around = replace(case.around, smoke=smoke_test(python, timeout))
    observation = replace(case.observation, driver="580.1")
    judged: Inspection = replace(case, around=around, observation=observation)
    check = next(check for check in CHECKS if check.id == "CUD006")
    return [(each.subject, each.message) for each in run_checks([check], judged) if each.status != "skip"]


def told_by(archs: list[str], capability: str, failures: dict[str, str]) -> str:
    told = {"available": True, "archs": archs, "devices": [["GPU", capability]] * 2, "failures": failures}
    return f"echo noise; echo 'envguard smoke: {json.dumps(told)}'"


def test_the_smoke_test_judges_what_the_process_tells(clean: Scratch, tmp_path: Path) -> None:
    assert smoked(clean, fake_python(tmp_path, told_by(["sm_90"], "9.0", {}))) == []
    [(subject, message)] = smoked(clean, fake_python(tmp_path, told_by(["sm_75", "sm_90"], "7.0", {})))
    assert (subject, message) == ("GPU", "GPU has compute capability 7.0, and torch holds code for sm_75, sm_90")
    [(subject, message)] = smoked(clean, fake_python(tmp_path, told_by(["sm_90"], "9.0", {"flex attention": "X: y"})))
    assert (subject, message) == ("flex attention", "on the GPU, flex attention fails: X: y")
    off = 'echo \'envguard smoke: {"available": false, "archs": [], "devices": [], "failures": {}}\''
    assert smoked(clean, fake_python(tmp_path, off))[0][1].startswith("torch.cuda.is_available() is false")
    assert "ended with exit 9: boom" in smoked(clean, fake_python(tmp_path, "echo boom >&2; exit 9"))[0][1]
    assert "did not end within 0 s" in smoked(clean, fake_python(tmp_path, "exec sleep 30"), timeout=0.3)[0][1]
    assert "cannot be started" in smoked(clean, tmp_path / "nothing")[0][1]


def test_without_a_driver_no_torch_is_started(clean: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envguard.probes.smoke.smoke_test", lambda *_: 1 / 0)
    monkeypatch.setattr("envguard.probes.gpu.driver_version", lambda: None)
    report = check_project(clean.root, "cpu", clean.python, tier="gpu")
    assert "CUD006" in {each.id for each in report.skipped}


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ("9.0", ["sm_90"], True),
        ("8.9", ["sm_86"], True),
        ("8.6", ["sm_89"], False),
        ("9.0", ["sm_86"], False),
        ("9.0", ["sm_90a"], True),
        ("12.1", ["sm_120"], True),
        ("12.1", ["sm_120a"], False),
        ("10.3", ["compute_90"], True),
        ("8.0", ["compute_90"], False),
        ("9.0", ["gfx90a", "nonsense"], False),
    ],
)
def test_which_code_runs_where(capability: str, archs: list[str], runs: bool) -> None:
    assert runs_on(capability, archs) is runs


# SRC


@pytest.fixture
def code(scratch: Scratch) -> Scratch:
    """A project with code under git, which its env.json has recorded."""
    edit_policy(scratch, "schema = 1\n", 'schema = 1\nsource = ["model", "run.py"]\nrecorded = "env.json"\n')
    (scratch.root / "model" / "deep").mkdir(parents=True)
    for name in ("model/mask.py", "model/deep/attention.py", "run.py"):
        (scratch.root / name).write_text("x = 1\n")
    (scratch.root / ".gitignore").write_text(".venv\nwheels\n__pycache__\n")
    git(scratch, "init", "-q")
    git(scratch, "add", ".")
    git(scratch, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "first")
    (scratch.root / "env.json").write_text(json.dumps(freeze(scratch.python, project=scratch.root)))
    return scratch


def git(scratch: Scratch, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(scratch.root), *arguments], check=True, capture_output=True)


def source_findings(scratch: Scratch) -> list[tuple[str, str, str]]:
    report = check_project(scratch.root, "cpu", scratch.python, tier="standard", select=["SRC"])
    return [(each.id, each.subject, each.status) for each in report.findings]


def write(name: str, text: str) -> Callable[[Scratch], object]:
    return lambda scratch: (scratch.root / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda s: None, []),
        (write("other.py", "x = 2"), []),
        (write("model/__pycache__.py", "x = 1\n"), [("SRC001", "model", "fail"), ("SRC002", "model", "warn")]),
        (write("model/deep/attention.py", "x = 2\n"), [("SRC001", "model", "fail"), ("SRC002", "model", "warn")]),
        (write("run.py", ""), [("SRC001", "run.py", "fail"), ("SRC002", "run.py", "warn")]),
        (lambda s: (s.root / "model" / "mask.py").unlink(), [("SRC001", "model", "fail"), ("SRC002", "model", "warn")]),
        (
            lambda s: git(s, "mv", "model/mask.py", "model/näme.py"),
            [("SRC001", "model", "fail"), ("SRC002", "model", "warn")],
        ),
    ],
)
def test_changed_code_is_told(
    code: Scratch, change: Callable[[Scratch], object], found: list[tuple[str, str, str]]
) -> None:
    change(code)
    assert source_findings(code) == found


def test_bytecode_is_no_code(code: Scratch) -> None:
    (code.root / "model" / "__pycache__").mkdir()
    (code.root / "model" / "__pycache__" / "mask.cpython-311.pyc").write_bytes(b"x")
    assert source_findings(code) == []


def test_without_git_nothing_is_said_about_commits(code: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    (code.root / ".git").rename(code.root / "git-was-here")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(code.root.parent))
    assert source_findings(code) == []
    assert reason(code, "SRC002") == "git cannot tell (not a git repository (or any of the parent directories): .git)"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert reason(code, "SRC002").startswith("git cannot be asked")


def test_code_that_was_not_recorded_is_skipped(code: Scratch) -> None:
    (code.root / "env.json").write_text(json.dumps({"facts": {"variables": {}, "distributions": []}}))
    assert source_findings(code) == []
    assert reason(code, "SRC001") == "env.json holds no code of the project"
    (code.root / "env.json").unlink()
    assert "cannot be read" in reason(code, "SRC001")


def test_a_source_that_is_not_there_is_a_policy_error(scratch: Scratch) -> None:
    from tests.envguard.test_cli import envguard

    edit_policy(scratch, "schema = 1\n", 'schema = 1\nsource = ["modle"]\n')
    done = envguard("doctor", "--project", str(scratch.root), "--profile", "cpu")
    assert done.returncode == 2
    place = f"{scratch.root / 'envguard.toml'}:2"
    assert done.stderr == f"error: {place}: source: got 'modle', allowed is an existing path\n"


REMOTE = """\
PINNED = "0123456789abcdef0123456789abcdef01234567"
MOVING = "main"
load("m", trust_remote_code=True)
load("m", trust_remote_code=True, revision="main")
load("m", trust_remote_code=True, revision=PINNED)
load("m", trust_remote_code=True, revision=MOVING)
load("m", trust_remote_code=True, revision=config.revision)
load("m", trust_remote_code=False)
load("m", trust_remote_code=flag)
load("m", **{"trust_remote_code": True})
options = {"trust_remote_code": True, "revision": "0123456789abcdef0123456789abcdef01234567"}
load("m", trust_remote_code=True, revision="0123456")
load("m", trust_remote_code=True, revision=None)
"""


def test_remote_code_needs_a_full_commit(code: Scratch) -> None:
    found = [(each.line, each.revision) for each in find_remote_code(REMOTE.encode(), "x.py")]
    assert found == [(3, None), (4, "main"), (6, "main"), (10, None), (12, "0123456"), (13, None)]
    (code.root / "model" / "mask.py").write_text('load("m", trust_remote_code=True)\n')
    assert ("SRC003", "model/mask.py:1", "fail") in source_findings(code)
    assert find_remote_code(b"trust_remote_code=True (", "x.py") == []
