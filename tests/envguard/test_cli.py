"""The command line: exit codes, streams, and what it says when the packages that it needs have drifted themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.registry import CHECKS
from tests.envguard.scratch import Scratch

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
