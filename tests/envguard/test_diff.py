"""``envguard diff``: any two sources, what they both know, and what each kind of change looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envguard.diff import Change, Difference, compare, diff_paths
from envguard.errors import UsageError
from envguard.guard import freeze
from envguard.probes.torch_build import TorchBuild
from envguard.report.difference import render_json, render_markdown, render_text
from envguard.sides import Item, Side
from tests.envguard.injections import editable, wheel, write
from tests.envguard.kinds import CODE
from tests.envguard.scratch import Scratch, torch_version_file


def write_env(scratch: Scratch, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(freeze(scratch.python)))
    return place


def changes(difference: Difference) -> list[tuple[str, str, str | None, str | None]]:
    return [(each.group, each.subject, each.before, each.after) for each in difference.changes]


@pytest.fixture
def sources(scratch: Scratch, tmp_path: Path) -> dict[str, Path]:
    """One environment as every kind of source."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"schema": 1, "status": "finished"}')
    write_env(scratch, run / "env.json")
    scratch.uv("export", "--quiet", "--frozen", "--format", "pylock.toml", "-o", "pylock.toml")
    return {
        "env.json": write_env(scratch, tmp_path / "env.json"),
        "uv.lock": scratch.root / "uv.lock",
        "pylock.toml": scratch.root / "pylock.toml",
        "venv": scratch.root / ".venv",
        "interpreter": scratch.python,
        "run directory": run,
        "run.json": run / "run.json",
        "project": scratch.root,
    }


def test_one_environment_is_the_same_as_every_kind_of_source(sources: dict[str, Path]) -> None:
    for left in sources.values():
        for right in sources.values():
            difference = diff_paths(left, right)
            assert (changes(difference), difference.exit_code) == ([], 0), f"{left} {right}"


def test_every_kind_of_source_sees_what_was_added(sources: dict[str, Path], scratch: Scratch, clean: Scratch) -> None:
    scratch.install("cowsay", "1.0")
    now = scratch.root / ".venv"
    for name in ("env.json", "uv.lock", "pylock.toml", "run directory", "run.json", "project"):
        assert changes(diff_paths(sources[name], now)) == [("added", "cowsay", None, "1.0")], name
        assert changes(diff_paths(now, sources[name])) == [("removed", "cowsay", "1.0", None)], name
    assert diff_paths(clean.root / ".venv", now).exit_code == 1


def test_an_extra_may_be_installed_or_not_but_its_version_counts(sources: dict[str, Path], scratch: Scratch) -> None:
    scratch.uv("sync", "--locked", "--all-extras")
    assert changes(diff_paths(sources["uv.lock"], sources["venv"])) == []
    scratch.install("delta", "2.0")
    assert changes(diff_paths(sources["uv.lock"], sources["venv"])) == [("version", "delta", "1.0", "2.0")]


def test_each_group_of_changes(sources: dict[str, Path], scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel("beta", "1.0", {"beta/__init__.py": "version = '1.0'  # rebuilt\n"})(scratch)
    scratch.install("alpha", "2.0")
    scratch.install("cowsay", "1.0")
    scratch.uv("pip", "uninstall", "gamma")
    write("torch/version.py", torch_version_file("+cu128", "12.8"))(scratch)
    write(CODE, "edited = True\n")(scratch)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    difference = diff_paths(sources["env.json"], sources["venv"])
    assert [(each.group, each.subject) for each in difference.changes] == [
        ("build", "beta"),
        ("build", "torch build"),
        ("version", "alpha"),
        ("added", "cowsay"),
        ("removed", "gamma"),
        ("edited", f"torch: {CODE}"),
        ("edited", "torch: torch/version.py"),
        ("environment", "NVIDIA_TF32_OVERRIDE"),
    ]
    assert difference.not_compared == ()
    text, markdown = render_text(difference), render_markdown(difference)
    for title in ("Build changed (same version)", "Version", "Added", "Removed", "Edited files", "Environment"):
        assert title in text
        assert f"**{title}**" in markdown
    assert "  alpha: 1.0 -> 2.0\n" in text
    assert "| alpha | 1.0 | 2.0 |\n" in markdown
    assert "8 differences" in text
    document = json.loads(render_json(difference))
    assert (document["schema"], document["exit_code"], len(document["changes"])) == (1, 1, 8)
    assert document["changes"][2] == {"group": "version", "subject": "alpha", "before": "1.0", "after": "2.0"}


def test_where_a_package_came_from_is_part_of_its_build(sources: dict[str, Path], scratch: Scratch) -> None:
    editable(scratch)
    assert changes(diff_paths(sources["env.json"], sources["venv"])) == [("build", "beta", "index", "directory")]


def side(name: str, **fields: object) -> Side:
    values: dict[str, object] = {"kind": "env.json", "packages": {}, **fields}
    return Side(name=name, **values)  # type: ignore[arg-type]


def test_a_local_label_is_a_build_and_a_public_version_is_not() -> None:
    left = side("a", packages={"torch": Item(version="2.11.0+cu130"), "beta": Item(version="1.0")})
    right = side("b", packages={"torch": Item(version="2.11.0+cu128"), "beta": Item(version="1.0.0")})
    assert changes(compare(left, right)) == [("build", "torch", "2.11.0+cu130", "2.11.0+cu128")]


def test_python_system_driver_and_torch_are_compared_where_both_know_them() -> None:
    build = TorchBuild(version="2.11.0+cu130", cuda="13.0", hip=None, git_version="a" * 40)
    other = TorchBuild(version="2.11.0+cu130", cuda="13.0", hip=None, git_version="b" * 40)
    known = {"knows_driver": True, "knows_torch": True, "variables": {}, "edited": frozenset()}
    left = side("a", python="3.11.7", system="linux x86_64", driver="580.1", torch=build, **known)
    right = side("b", python="3.12.1", system="linux aarch64", driver=None, torch=other, **known)
    assert [(each.group, each.subject) for each in compare(left, right).changes] == [
        ("build", "torch build"),
        ("environment", "driver"),
        ("environment", "python"),
        ("environment", "system"),
    ]
    lock = side("c", kind="uv.lock")
    blind = compare(left, lock)
    assert blind.changes == ()
    assert len(blind.not_compared) == 6
    assert all("c (uv.lock)" in each for each in blind.not_compared)


def test_two_metadata_directories_are_two_versions(sources: dict[str, Path], scratch: Scratch) -> None:
    from tests.envguard.injections import second_dist_info

    second_dist_info(scratch)
    assert (
        Change(group="version", subject="alpha", before="1.0", after="0.9, 1.0")
        in diff_paths(sources["env.json"], sources["venv"]).changes
    )


def test_a_pylock_without_packaging_pylock_reads_the_same(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "packaging.pylock", None)
    assert changes(diff_paths(sources["pylock.toml"], sources["uv.lock"])) == []


def test_markers_of_a_pylock_are_those_of_the_environment_beside_it(scratch: Scratch, tmp_path: Path) -> None:
    lock = tmp_path / "pylock.other.toml"
    lock.write_text(
        'lock-version = "1.0"\ncreated-by = "tests"\n'
        + "".join(
            f'[[packages]]\nname = "{name}"\nversion = "1.0"\nmarker = "{marker}"\n'
            f'[[packages.wheels]]\nurl = "http://localhost/{name}-1.0-py3-none-any.whl"\nhashes = {{ sha256 = "00" }}\n'
            for name, marker in (("old", "python_version < '3.0'"), ("dev", "'dev' in dependency_groups"))
        )
    )
    packages = diff_paths(lock, scratch.root / ".venv").left.packages
    assert packages == {}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("nothing", None, "there is nothing"),
        ("empty/", None, "holds no pyvenv.cfg"),
        ("env.json", "{", "is no JSON"),
        ("env.json", "[]", "is no env.json"),
        ("env.json", '{"schema": 9, "facts": {}}', "has schema 9"),
        ("env.json", '{"schema": 1, "env_id": "x", "facts": {}}', "was changed by hand"),
        ("uv.lock", "version = 2\n", "this envguard reads 1"),
        ("pylock.toml", "lock-version = '1.0'\n", "is no pylock.toml of PEP 751"),
        ("pylock.toml", "lock-version =", "is no valid TOML"),
        ("notes.txt", "hello", "neither a file that can be compared nor an interpreter"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_2(
    clean: Scratch, tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    elif text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=said):
        diff_paths(path, clean.root / ".venv")
    command = [sys.executable, "-m", "envguard", "diff", str(clean.root / ".venv"), str(path)]
    done = subprocess.run(command, cwd=clean.root, env=clean.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def test_an_env_json_with_another_shape_is_refused(clean: Scratch, tmp_path: Path) -> None:
    from envguard.envjson import _identify

    document = freeze(clean.python)
    for break_it in (
        lambda facts: facts.pop("driver"),
        lambda facts: facts.update(python="3.11"),
        lambda facts: facts["distributions"][0].update(version=1),
    ):
        broken = json.loads(json.dumps(document))
        break_it(broken["facts"])
        broken["env_id"] = _identify(broken["facts"])
        (tmp_path / "env.json").write_text(json.dumps(broken))
        with pytest.raises(UsageError, match="is not as this envguard writes it"):
            diff_paths(tmp_path / "env.json", tmp_path / "env.json")


def test_the_command_prints_and_exits(clean: Scratch, scratch: Scratch) -> None:
    def envguard(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "envguard", "diff", *arguments]
        return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)

    here, there = str(clean.root / ".venv"), str(scratch.root / ".venv")
    assert envguard(here, there).returncode == 0
    scratch.install("cowsay", "1.0")
    for options in ((), ("--json",), ("--format", "markdown")):
        done = envguard(here, there, *options)
        assert (done.returncode, done.stderr) == (1, "")
        assert "cowsay" in done.stdout
