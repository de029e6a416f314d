"""``dflash preflight``: what it says and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .preflight_faults import (
    ROOT,
)


def run_preflight(code: str = "", *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that runs ``code`` first."""
    import os

    script = f"import sys\n{code}\nfrom dflash.cli.entry import main\nsys.exit(main(['preflight', *sys.argv[1:]]))"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_command_says_pass_and_what_is_handled() -> None:
    done = run_preflight("", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "pass"
    alone, after = document["stages"]
    assert (alone["stage"], after["stage"]) == ("torch alone", "after the imports")
    assert "CMP022" in {hazard["id"] for hazard in after["handled"]}


@pytest.mark.slow
def test_the_command_fails_with_the_remedy() -> None:
    done = run_preflight("", TORCH_COMPILE_DISABLE="1")
    assert done.returncode == 1
    assert "CMP014" in done.stdout
    assert "unset TORCH_COMPILE_DISABLE" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_cache_directory_that_torch_cannot_make_is_a_finding_with_its_remedy() -> None:
    """torch makes it while it is imported, and raises."""
    done = run_preflight("", "--json", TORCHINDUCTOR_CACHE_DIR=__file__ + "/cache")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["status"] == "fail"
    [stage] = document["stages"]
    assert [finding["id"] for finding in stage["findings"]] == ["DFL002"]
    assert "TORCHINDUCTOR_CACHE_DIR" in stage["findings"][0]["fix"]


def test_a_place_that_only_torch_finds_unusable_is_a_finding_too() -> None:
    """Its rights say that it can be written."""
    done = run_preflight("", "--json", TORCHINDUCTOR_CACHE_DIR="/proc/dflash")
    assert done.returncode == 1
    [stage] = json.loads(done.stdout)["stages"]
    assert stage["stage"] == "before torch"
    assert "DFL002" in [finding["id"] for finding in stage["findings"]]
    assert "Traceback" not in done.stderr


def test_settings_without_a_configuration_are_refused() -> None:
    done = run_preflight("", "--set", "run.steps=3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --set overrides a setting of a CONFIG, and none was given")


def test_what_could_not_be_judged_is_the_status_of_the_document() -> None:
    """A check that crashes in the first stage outweighs one that fails."""
    code = (
        "from envguard.frozen import replace\n"
        "from dflash import doctor\n"
        "broken = replace(next(c for c in doctor.CHECKS if c.id == 'DFL001'), run=lambda host: 1 / 0)\n"
        "doctor.CHECKS = (broken, *(c for c in doctor.CHECKS if c.id == 'DFL002'))"
    )
    done = run_preflight(code, "--json", TORCHINDUCTOR_CACHE_DIR=__file__ + "/cache")
    assert done.returncode == 3
    assert json.loads(done.stdout)["status"] == "error"
