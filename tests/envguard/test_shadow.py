"""Where an import would come from, compared with what the judged interpreter itself says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envguard import check_project
from envguard.report import Report
from tests.envguard.scratch import Scratch

ROOT = Path(__file__).parents[2]


def judge(scratch: Scratch) -> Report:
    return check_project(scratch.root, "cpu", scratch.python)


def shadows(report: Report) -> list[tuple[str, str]]:
    return [(each.subject, each.observed or "") for each in report.findings if each.id == "SHD001"]


def truth(scratch: Scratch, module: str, cwd: Path, **environ: str) -> str | None:
    """What the scratch interpreter says."""
    code = f"import importlib.util as u; print(u.find_spec({module!r}).origin)"
    command = [str(scratch.python), "-c", code]
    done = subprocess.run(
        command, cwd=cwd, env={**scratch.environ, **environ}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def package(directory: Path, name: str) -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "__init__.py").write_text("raise SystemExit('imported')")
    return directory / name / "__init__.py"


def test_a_package_in_the_current_directory(scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = package(tmp_path, "torch")
    monkeypatch.chdir(tmp_path)
    assert truth(scratch, "torch", tmp_path) == str(fake)
    assert shadows(judge(scratch)) == [("torch", str(fake))]
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert truth(scratch, "torch", tmp_path, PYTHONSAFEPATH="1") == str(scratch.site_packages / "torch/__init__.py")
    assert shadows(judge(scratch)) == []


def test_a_package_on_pythonpath(scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = package(tmp_path / "lib", "torch")
    monkeypatch.setenv("PYTHONPATH", f"/nonexistent{os.pathsep}{tmp_path / 'lib'}")
    assert truth(scratch, "torch", Path("/"), PYTHONPATH=os.environ["PYTHONPATH"]) == str(fake)
    assert ("torch", str(fake)) in shadows(judge(scratch))


def test_a_directory_that_a_pth_adds_comes_after(scratch: Scratch, tmp_path: Path) -> None:
    fake = package(tmp_path / "lib", "torch")
    package(tmp_path / "lib", "triton")
    (scratch.site_packages / "zz.pth").write_text(f"{tmp_path / 'lib'}\n")
    assert truth(scratch, "torch", Path("/")) != str(fake)
    found = shadows(judge(scratch))
    assert found == [("triton", str(tmp_path / "lib" / "triton" / "__init__.py"))]
    assert truth(scratch, "triton", Path("/")) == found[0][1]


def test_a_bare_directory_shadows_nothing_that_is_a_package(
    scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    monkeypatch.chdir(tmp_path)
    assert truth(scratch, "torch", tmp_path) == str(scratch.site_packages / "torch/__init__.py")
    assert shadows(judge(scratch)) == []


@pytest.mark.parametrize("name", ["torch.py", "torch.abi3.so", "torch.pyc"])
def test_a_single_file_shadows_too(
    scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert truth(scratch, "torch", tmp_path) == str(tmp_path / name)
    assert shadows(judge(scratch)) == [("torch", str(tmp_path / name))]


@pytest.mark.parametrize("start", ["-m", "console", "library"])
def test_the_running_interpreter_is_judged_by_its_own_path(scratch: Scratch, tmp_path: Path, start: str) -> None:
    """As a module and as a console script the current directory counts; a script has its own directory instead."""
    fake = package(tmp_path / "here", "torch")
    arguments = ["check", "--project", str(scratch.root), "--profile", "cpu", "--json"]
    arguments[0] = "doctor"
    script = scratch.python.parent / "guard" if start == "console" else tmp_path / "elsewhere.py"
    script.write_text(
        f"import sys; sys.path += [{str(ROOT)!r}, {packaging_home()!r}]\n"
        f"from envguard.cli import main\nraise SystemExit(main({arguments!r}))\n"
    )
    command = [str(scratch.python), str(script)]
    environ = dict(scratch.environ)
    if start == "-m":
        environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{packaging_home()}"
        command = [str(scratch.python), "-m", "envguard", *arguments]
    done = subprocess.run(command, cwd=tmp_path / "here", env=environ, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    found = [(each["subject"], each["observed"]) for each in report["findings"] if each["id"] == "SHD001"]
    assert found == ([] if start == "library" else [("torch", str(fake))])


def packaging_home() -> str:
    """A directory with packaging and nothing else, for an interpreter that has no site-packages of ours."""
    import packaging

    home = Path(packaging.__file__).parents[1]
    target = Path(os.environ["XDG_CACHE_HOME"]) / "packaging-only"
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "packaging").exists():
        (target / "packaging").symlink_to(home / "packaging")
    return str(target)


def test_nothing_was_imported(scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "triton")  # its __init__ ends the process
    monkeypatch.chdir(tmp_path)
    assert shadows(judge(scratch)) == [("triton", str(tmp_path / "triton" / "__init__.py"))]
    assert "triton" not in sys.modules or sys.modules["triton"].__file__ != str(tmp_path / "triton" / "__init__.py")
