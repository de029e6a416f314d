"""The command line: exit codes, streams, and what it says when the packages that it needs have drifted themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from envguard.pkg import MINIMAL
from envguard.registry import CHECKS, FAMILIES
from tests.envguard.scratch import Scratch, find_uv, make_wheel

ROOT = Path(__file__).parents[2]


def envguard(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envguard", *arguments]
    environment = {**os.environ, **environ}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def judge(scratch: Scratch, *arguments: str) -> subprocess.CompletedProcess[str]:
    return envguard("check", "--project", str(scratch.root), "--python", str(scratch.python), *arguments)


def test_a_sound_environment_exits_0(clean: Scratch) -> None:
    done = judge(clean, "--profile", "cpu", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (document["schema"], document["status"], document["findings"]) == (1, "pass", [])


def test_json_has_the_documented_keys(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    done = judge(scratch, "--profile", "cpu", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 1
    assert document["status"] == "fail"
    assert "uv sync --locked" in document["repair"]
    [finding] = document["findings"]
    assert list(finding) == [
        "id",
        "status",
        "severity",
        "subject",
        "message",
        "expected",
        "observed",
        "fix",
        "waiver",
        "place",
    ]
    assert (finding["id"], finding["subject"], finding["observed"]) == ("PKG003", "cowsay", "1.0")


def test_text_is_worst_first_plain_and_ends_with_the_repair(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    (scratch.site_packages / "torch" / "version.py").write_text("?")
    done = judge(scratch, "--profile", "cpu")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert done.stdout.index("BLD001") < done.stdout.index("PKG003")
    assert done.stdout.rstrip().splitlines()[-1].endswith("--reinstall-package torch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: COMMAND"),
        (("chek",), "invalid choice: 'chek'"),
        (("check", "--profle", "cpu"), "unrecognized arguments"),
        (("check", "--project", "/nonexistent"), "no such directory"),
        (("check", "--profile", "cu999"), "no profile is called 'cu999'; allowed: auto, cu130, cpu, cu128"),
        (("check", "--python", "/nonexistent"), "is no interpreter"),
        (("explain", "PKG999"), "no check is called 'PKG999'; nearest: PKG"),
        (("freeze", "-o", "/nonexistent/env.json"), "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    done = envguard(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_no_policy_here_or_above_is_exit_2(tmp_path: Path) -> None:
    done = envguard("doctor", cwd=tmp_path)
    assert done.returncode == 2
    assert "no envguard.toml" in done.stderr
    assert "--project DIR" in done.stderr


@pytest.mark.parametrize("code", ["raise RuntimeError('half a package')", "import nothing_of_this_name", "def ("])
def test_a_broken_packaging_is_one_line_and_exit_3(tmp_path: Path, code: str) -> None:
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "__init__.py").write_text(code)
    done = envguard("doctor", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "'packaging'" in done.stderr
    assert "uv sync --locked --reinstall-package packaging" in done.stderr


def test_a_bug_is_one_line_and_debug_shows_where(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import envguard.guard\nenvguard.guard.load_policy = lambda *_: 1 / 0\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = envguard("doctor", PYTHONPATH=path)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "a bug in envguard (ZeroDivisionError" in done.stderr
    for shown in (
        envguard("doctor", "--debug", PYTHONPATH=path),
        envguard("doctor", PYTHONPATH=path, ENVGUARD_DEBUG="1"),
    ):
        assert shown.returncode == 3
        assert "Traceback (most recent call last)" in shown.stderr


def test_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "envguard", "list"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_every_check_explains_itself() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    listed = envguard("list").stdout
    for check in CHECKS:
        assert check.id in listed
        assert check.why.endswith(".")
    explained = envguard("explain", "pkg003")
    assert explained.returncode == 0
    assert "uv run keeps what uv pip install left behind" in explained.stdout


def test_freeze_writes_what_check_identifies(scratch: Scratch, tmp_path: Path) -> None:
    target = tmp_path / "env.json"
    assert envguard("freeze", "--python", str(scratch.python), "-o", str(target)).returncode == 0
    frozen = json.loads(target.read_text())
    assert frozen["schema"] == 1
    assert frozen["env_id"] == json.loads(judge(scratch, "--profile", "cpu", "--json").stdout)["env_id"]
    [alpha] = [each for each in frozen["facts"]["distributions"] if each["name"] == "alpha"]
    assert (alpha["version"], len(alpha["fingerprint"]), alpha["problem"]) == ("1.0", 64, None)
    assert alpha["origin"] is None
    assert "alpha" in frozen["place"]["installers"]["uv"]


# What to judge, and where to write


def test_tiers_and_selection(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    scratch.uv("pip", "uninstall", "gamma")

    def ids(*arguments: str) -> tuple[list[str], int]:
        done = judge(scratch, "--profile", "cpu", "--json", *arguments)
        document = json.loads(done.stdout)
        return [each["id"] for each in document["findings"]], done.returncode

    assert ids() == (["PKG001", "PKG003"], 1)
    assert ids("--fast") == (["PKG001", "PKG003"], 1)
    assert ids("--select", "pkg003") == (["PKG003"], 1)
    assert ids("--select", "PKG001", "BLD") == (["PKG001"], 1)
    assert ids("--select", "PKG001", "--select", "PKG003") == (["PKG001", "PKG003"], 1)
    assert ids("--ignore", "PKG") == ([], 0)
    assert ids("--select", "PKG", "--ignore", "PKG001") == (["PKG003"], 1)


def test_each_tier_runs_what_it_includes(clean: Scratch) -> None:
    def judged(*arguments: str) -> set[str]:
        document = json.loads(judge(clean, "--profile", "cpu", "--json", *arguments).stdout)
        return {*document["passed"], *(each["id"] for each in document["skipped"])}

    by_tier = {
        tier: {check.id for check in CHECKS if check.tier == tier} for tier in ("fast", "standard", "deep", "gpu")
    }
    standard = by_tier["fast"] | by_tier["standard"]
    assert judged("--fast") == by_tier["fast"]
    assert judged() == standard
    assert judged("--deep") == standard | by_tier["deep"]
    assert judged("--gpu") == standard | by_tier["gpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--select", "XYZ"), "no check or family is called 'XYZ'; families: ENV, "),
        (("--ignore", "PKG999"), "no check or family is called 'PKG999'; nearest: PKG0"),
        (("--select", ""), "no check or family is called ''"),
        (("--fast", "--select", "LCK001"), "--select LCK001: the fast tier does not run it; use envguard check"),
        (("--select", "CUD006"), "--select CUD006: the standard tier does not run it; add --gpu"),
        (("--fast", "--deep"), "not allowed with argument"),
        (("--format", "yaml"), "invalid choice: 'yaml'"),
        (("--output", "/nonexistent/report"), "--output /nonexistent/report: cannot be written"),
    ],
)
def test_wrong_choices_are_one_line_and_exit_2(clean: Scratch, arguments: tuple[str, ...], message: str) -> None:
    done = judge(clean, "--profile", "cpu", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_strict_makes_warnings_count(clean: Scratch) -> None:
    arguments = ("check", "--project", str(clean.root), "--python", str(clean.python), "--profile", "cpu")
    assert envguard(*arguments, TRITON_F32_DEFAULT="1").returncode == 0
    strict = envguard(*arguments, "--strict", TRITON_F32_DEFAULT="1")
    assert strict.returncode == 1
    assert "with --strict a warning counts" in strict.stdout


def test_output_goes_to_a_file(clean: Scratch, tmp_path: Path) -> None:
    target = tmp_path / "report.sarif"
    done = judge(clean, "--profile", "cpu", "--format", "sarif", "--output", str(target))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"wrote {target}\n")
    assert json.loads(target.read_text())["version"] == "2.1.0"


# What it needs itself


def bare_environment(directory: Path) -> Path:
    """A real environment without ``packaging``."""
    command = [find_uv(), "venv", "--quiet", "--no-project", "--python", sys.executable, str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    return directory / "bin" / "python"


def run_bare(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "envguard", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_missing_packaging_is_one_line_and_exit_3(tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "venv")
    for command in ("check", "doctor"):
        done = run_bare(python, command)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1
        assert "'packaging', which envguard itself needs, cannot be imported (ModuleNotFoundError" in done.stderr
    for arguments in (("list",), ("list", "--format", "markdown"), ("explain", "PKG003"), ("list", "--json")):
        done = run_bare(python, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "PKG003" in done.stdout


def test_an_old_packaging_is_one_line_and_exit_3(tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "venv")
    files = {
        "packaging/__init__.py": "__version__ = '24.2'\n",
        "packaging/version.py": "",
        "packaging/specifiers.py": "",
    }
    wheel = make_wheel(tmp_path, "packaging", "24.2", files)
    install = [find_uv(), "pip", "install", "--quiet", "--offline", "--no-index", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    done = run_bare(python, "doctor")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "error: the package 'packaging' is 24.2, and envguard needs at least 25.0: "
        "run uv sync --locked --reinstall-package packaging\n"
    )
    assert run_bare(python, "explain", "PKG003").returncode == 0


def test_the_minimum_is_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"packaging>={MINIMAL[0]}.{MINIMAL[1]}" in project["dependencies"]


# The catalogue


def test_the_page_of_checks_is_that_of_the_registry() -> None:
    page = (ROOT / "docs" / "checks.md").read_text()
    assert page == envguard("list", "--format", "markdown").stdout, "write it anew: envguard list --format markdown"


def test_list_names_every_check_under_its_family() -> None:
    lines = envguard("list").stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        f"{letters}  {title}" for letters, title in FAMILIES.items() if any(c.id.startswith(letters) for c in CHECKS)
    ]
    assert [line.split()[0] for line in lines if line.startswith(" ")] == sorted(
        (check.id for check in CHECKS), key=lambda each: (list(FAMILIES).index(each[:3]), each)
    )


def test_explain_tells_severity_tier_and_an_example() -> None:
    text = envguard("explain", "CUD006").stdout
    assert "Severity: fail" in text
    assert "Tier:     gpu (envguard check --gpu)" in text
    assert "Example: Tesla V100" in text
    assert json.loads(envguard("explain", "pol003", "--json").stdout)["example"].endswith("(POL003)")
