"""dflash doctor: the machine's own findings, and the entry point that turns everything into an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.doctor import CHECKS
from dflash.host import HostFacts, look_at_host
from envguard.findings import run_checks

ROOT = Path(__file__).parents[1]


def dflash(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash.cli.entry", *arguments]
    environment = {**os.environ, **environ}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def findings(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    assert done.stderr == ""
    return [(each["id"], each["subject"]) for each in json.loads(done.stdout)["findings"]]


def ids(host: HostFacts) -> list[str]:
    return [finding.id for finding in run_checks(CHECKS, host)]


@pytest.fixture(scope="module")
def host() -> HostFacts:
    facts = look_at_host()
    assert ids(facts) == []  # the machine that runs the tests is in order
    return facts


def test_this_environment_has_no_finding() -> None:
    done = dflash("doctor", "--json")
    assert findings(done) == []
    assert done.returncode == 0


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    done = dflash("doctor", "--json", PATH=str(tmp_path))
    assert findings(done) == [("DFL001", "g++")]
    assert done.returncode == 1
    done = dflash("doctor", "--json", CXX="/nonexistent/c++")
    assert findings(done) == [("DFL001", "/nonexistent/c++")]


def test_a_compiler_that_does_not_work_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("no program")
    broken.chmod(0o755)
    for compiler in ("/bin/false", str(broken)):
        [finding] = json.loads(dflash("doctor", "--json", CXX=compiler).stdout)["findings"]
        assert finding["id"] == "DFL001"
        assert f"the C++ compiler {compiler} does not work" in finding["message"]


def test_another_compiler_is_offered(tmp_path: Path) -> None:
    (tmp_path / "clang++").write_text("#!/bin/sh\n")
    (tmp_path / "clang++").chmod(0o755)
    [finding] = run_checks(CHECKS, look_at_host({**os.environ, "PATH": str(tmp_path)}, platform="linux"))
    assert finding.fix == "set CXX=clang++, which is on PATH"


def test_the_cache_directory_must_be_absolute_and_a_directory(tmp_path: Path) -> None:
    done = dflash("doctor", "--json", TORCHINDUCTOR_CACHE_DIR="cache")
    assert findings(done) == [("DFL002", "TORCHINDUCTOR_CACHE_DIR")]
    (tmp_path / "file").write_text("")
    done = dflash("doctor", TORCHINDUCTOR_CACHE_DIR="")
    assert "TORCHINDUCTOR_CACHE_DIR is set and empty" in done.stdout
    assert "fix: unset it, or set it to" in done.stdout
    inside = str(tmp_path / "file" / "cache")
    done = dflash("doctor", "--json", TORCHINDUCTOR_CACHE_DIR=inside)
    assert findings(done) == [("DFL002", inside)]
    assert dflash("doctor", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "new" / "cache")).returncode == 0


def test_the_cache_directory_must_be_writable_and_ones_own(host: HostFacts, tmp_path: Path) -> None:
    cache = replace(host.cache, path=tmp_path, existing=tmp_path, owner=host.user)
    assert ids(replace(host, cache=cache)) == []
    assert ids(replace(host, cache=replace(cache, is_writable=False))) == ["DFL002"]
    assert ids(replace(host, cache=replace(cache, owner=host.user + 1))) == ["DFL002"]
    parent = replace(cache, path=tmp_path / "new", owner=host.user + 1)  # /tmp belongs to root, and that is fine
    assert ids(replace(host, cache=parent)) == []


def test_somebody_elses_cache_directory_is_named(tmp_path: Path) -> None:
    foreign = tmp_path if os.getuid() == 0 else Path("/usr")  # root can give a directory away, others see root's
    if foreign == tmp_path:
        os.chown(tmp_path, 12345, -1)
    done = dflash("doctor", "--json", TORCHINDUCTOR_CACHE_DIR=str(foreign))
    assert findings(done) == [("DFL002", str(foreign))]


def test_a_full_disk_is_named(host: HostFacts) -> None:
    [finding] = run_checks(CHECKS, replace(host, free_bytes=((Path("/full"), 10 << 20), (Path("/"), 2 << 30))))
    assert (finding.id, finding.subject) == ("DFL003", "/full")
    assert "0.01 GiB" in finding.message


def test_a_foreign_package_of_our_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache_tools").mkdir()
    (tmp_path / "cache_tools" / "__init__.py").write_text("")
    code = (
        "import sys, dflash.host, dflash.doctor; "
        f"sys.path.insert(0, {str(tmp_path)!r}); "
        "from envguard.findings import run_checks; "
        "[found] = run_checks(dflash.doctor.CHECKS, dflash.host.look_at_host()); print(found.id, found.message)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"DFL004 import cache_tools finds {tmp_path}")


def test_a_missing_typer_is_named(host: HostFacts) -> None:
    assert ids(replace(host, broken_imports=(("typer", "it is not on sys.path"),))) == ["DFL005"]


def test_a_broken_typer_stops_everything_but_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise RuntimeError('half a package')")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    assert dflash("doctor", PYTHONPATH=path).returncode == 0
    done = dflash("cache", "list", PYTHONPATH=path)
    assert done.returncode == 3
    assert done.stderr == "error: typer cannot be imported (RuntimeError: half a package): run dflash doctor\n"


def test_a_missing_rich_does_not_stop_the_help(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('no rich')")
    assert dflash("--help", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "error: No such command 'nope'; see dflash --help"),
        (("--nope",), "error: No such option: --nope; see dflash --help"),
        (("cache", "nope"), "error: No such command 'nope'; see dflash cache --help"),
        (("doctor", "--nope"), "error: unrecognized arguments: --nope; see dflash doctor --help"),
        (("doctor", "--profile", "nope"), f"error: {ROOT}/envguard.toml: no profile is called 'nope'; allowed: "),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    done = dflash(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_closed_pipe_is_quiet_under_typer() -> None:
    script = (
        "import sys, typer\nfrom envguard.cliutil import run, write_out\napp = typer.Typer()\n"
        "@app.command()\ndef show():\n    write_out('data')\n"
        "sys.exit(run('dflash', lambda arguments: app(args=arguments, standalone_mode=False), []))\n"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_doctor_outside_a_project_is_exit_2_unless_it_is_named(tmp_path: Path) -> None:
    assert dflash("doctor", cwd=tmp_path).returncode == 2
    assert dflash("doctor", "--project", str(ROOT), cwd=tmp_path).returncode == 0


def test_a_deleted_current_directory_is_named(tmp_path: Path) -> None:
    script = f"import os; os.rmdir({os.fspath(tmp_path)!r}); from dflash.cli.entry import main; main(['doctor'])"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); {script}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == "error: the current directory has been deleted; change into another one\n"


def test_help_lists_only_what_exists() -> None:
    done = dflash("--help")
    assert done.returncode == 0
    assert "doctor" in done.stdout
    assert "Exit codes: 0 fine, 1 findings" in done.stdout


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        ("KeyboardInterrupt", 130, "interrupted"),
        ("ZeroDivisionError('x')", 3, "error: a bug in dflash (ZeroDivisionError: x)"),
        ("ModuleNotFoundError('No module named numpy', name='numpy')", 3, "error: a package cannot be imported"),
        ("MemoryError()", 1, "error: this process gets no more memory or threads"),
        ("RuntimeError('can\\'t start new thread')", 1, "error: this process gets no more memory or threads"),
        ("ToolError('one\\ntwo')", 1, "error: one\nerror: two"),
    ],
)
def test_what_a_command_raises_becomes_its_exit_code(raised: str, code: int, message: str) -> None:
    script = (
        "import sys\nfrom envguard.errors import ToolError\nfrom envguard.cliutil import run\n"
        f"def command(arguments):\n    raise {raised}\nsys.exit(run('dflash', command, sys.argv[1:]))\n"
    )
    for debug in (False, True):
        command = [sys.executable, "-c", script, *(["--debug"] if debug else [])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert message in done.stderr
        assert ("Traceback" in done.stderr) is (debug and code != 130)


def test_ctrl_c_within_a_command_of_typer_is_told() -> None:
    script = (
        "import sys, typer\nfrom envguard.cliutil import run\napp = typer.Typer()\n@app.command()\n"
        "def command():\n    raise KeyboardInterrupt\n"
        "sys.exit(run('x', lambda given: app(args=given, standalone_mode=False), []))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_driver_that_refuses_is_named(host: HostFacts) -> None:
    assert ids(replace(host, gpu_problem="cuInit returned 999")) == ["DFL006"]


def test_the_report_tells_what_was_judged() -> None:
    assert json.loads(dflash("doctor", "--json").stdout)["judged"].startswith("Python 3.")


def test_the_version_is_told() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    done = dflash("--version")
    assert (done.returncode, done.stdout) == (0, f"dflash-toolkit {told}\n")


def test_ctrl_c_sent_twice_is_no_traceback() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "from envguard.cliutil import run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.exit(run('dflash', lambda _: os.kill(os.getpid(), signal.SIGINT), []))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("instead", ["pass", "raise ImportError('half a module')", "raise OSError(5, 'why')"])
def test_ctrl_c_that_a_package_swallows_is_an_interrupt(instead: str) -> None:
    code = (
        "import os, signal, sys\n"
        "from envguard.cliutil import run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def command(_):\n"
        f"    try: os.kill(os.getpid(), signal.SIGINT)\n    except BaseException: {instead}\n"
        "sys.exit(run('dflash', command, []))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_exit_does_not_change_the_end(number: signal.Signals) -> None:
    """torch takes up to seconds to shut its compile workers down at exit."""
    code = (
        "import atexit, os, sys, time\nfrom envguard.cliutil import run\n"
        f"def slow():\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(30)\n"
        "atexit.register(slow)\nsys.exit(run('dflash', lambda _: 1, []))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
