"""``envguard sync``: prints uv's commands, runs them only when told to, and judges what came of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.envguard.injections import edit, move_watched, unlink, write
from tests.envguard.kinds import CODE
from tests.envguard.scratch import Scratch


def sync(scratch: Scratch, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envguard", "sync", "--profile", "cpu", *arguments]
    environment = {**scratch.environ, **environ}
    return subprocess.run(command, cwd=scratch.root, env=environment, capture_output=True, text=True, check=False)


def installed(scratch: Scratch) -> set[str]:
    return {path.name for path in scratch.site_packages.glob("*.dist-info")}


def test_a_sound_environment_has_nothing_to_do(clean: Scratch) -> None:
    done = sync(clean)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to do" in done.stderr
    applied = sync(clean, "--apply")
    assert applied.returncode == 0
    assert "ok: the environment is what the lock and the policy say" in applied.stdout


def test_it_prints_and_changes_nothing_until_applied(scratch: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    write(CODE, "edited = True\n")(scratch)
    unlink("alpha-1.0.dist-info/RECORD")(scratch)
    before = installed(scratch)
    printed = sync(scratch)
    assert printed.returncode == 0
    assert printed.stdout.splitlines() == [
        f"rm -r {scratch.site_packages / 'alpha-1.0.dist-info'}",
        "uv sync --locked --reinstall-package torch",
    ]
    assert installed(scratch) == before
    document = json.loads(sync(scratch, "--json").stdout)
    assert (document["schema"], document["profile"]) == (1, "cpu")
    assert [each["shell"] for each in document["commands"]] == printed.stdout.splitlines()
    applied = sync(scratch, "--apply")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert "+ uv sync --locked --reinstall-package torch" in applied.stderr
    assert "- cowsay==1.0" in applied.stderr  # uv's own words
    assert "ok: " in applied.stdout
    assert sync(scratch).stdout == ""


def test_a_missing_environment_is_made(scratch: Scratch) -> None:
    shutil.rmtree(scratch.root / ".venv")
    assert sync(scratch).stdout == "uv sync --locked\n"
    assert sync(scratch, "--python", sys.executable).stdout == f"uv sync --locked --python {sys.executable}\n"
    assert sync(scratch, "--apply", "--python", sys.executable).returncode == 0
    assert "torch-2.11.0.dist-info" in installed(scratch)


def test_another_python_is_asked_for_only_where_it_is_another(clean: Scratch) -> None:
    own = "{}.{}".format(*sys.version_info[:2])
    assert sync(clean, "--python", own).stdout == ""
    assert sync(clean, "--python", ">=3.11").stdout == ""
    assert sync(clean, "--python", "3.10").stdout == "uv sync --locked --python 3.10\n"


def test_another_environment_is_named_in_the_command(scratch: Scratch, tmp_path: Path) -> None:
    """As seen from a shell in another directory, where UV_PROJECT_ENVIRONMENT says which environment is meant."""
    other = tmp_path / "other"
    command = [sys.executable, "-m", "envguard", "sync", "--profile", "cpu", "--project", str(scratch.root), "--apply"]
    environ = {**scratch.environ, "UV_PROJECT_ENVIRONMENT": str(other), "UV_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"+ uv sync --locked --project {scratch.root}" in done.stderr
    assert (other / "pyvenv.cfg").is_file()


def test_a_profile_without_a_lock_cannot_be_synced(clean: Scratch) -> None:
    done = sync(clean, "--profile", "later")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "its index is out of reach" in done.stderr


def test_a_command_that_fails_is_exit_1_and_said(scratch: Scratch) -> None:
    edit("pyproject.toml", '"alpha==1.0"', '"alpha==77.0"')(scratch)
    done = sync(scratch, "--apply")
    assert done.returncode == 1
    assert "error: this ended with exit 1, see above: uv lock" in done.stderr
    assert done.stdout == ""


def test_a_missing_uv_is_exit_3(scratch: Scratch) -> None:
    shutil.rmtree(scratch.root / ".venv")
    done = sync(scratch, "--apply", PATH="/nonexistent")
    assert done.returncode == 3
    assert "uv cannot be run" in done.stderr


def test_what_only_a_person_can_do_is_said(scratch: Scratch) -> None:
    move_watched(scratch)
    (scratch.site_packages / "sglang_kernel").mkdir()
    done = sync(scratch)
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 findings are left for a person" in done.stderr
    assert sync(scratch, "--apply").returncode == 1
