"""The policy file is read strictly, and every problem is reported at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envguard.errors import PolicyError, UsageError
from envguard.policy import load_policy
from envguard.project import find_project

GOOD = 'schema = 1\n[auto]\nwith-driver = "a"\n[profiles.a]\npython = ">=3.11"\n[profiles.b]\npython = ">=3.11"\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "envguard.toml"
    path.write_text(text)
    return path


def problems(directory: Path, text: str) -> list[str]:
    path = write(directory, text)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert caught.value.exit_code == 2
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}") for line in lines)
    return [re.sub(r"^:\d+: ", "", line.removeprefix(f"{path}")) for line in lines]


@pytest.mark.parametrize(
    ("addition", "problem"),
    [
        ("[profiles.a.x]\n", "profiles.a.x: unknown key, nearest known key: "),
        ("[distributions]\nforbidden = []\n", "distributions.forbidden: unknown key, nearest known key: forbid"),
        ("[distributions]\nforbid = 'x'\n", "distributions.forbid: got 'x', allowed is a list of strings"),
        (
            "[distributions]\nunexpected = 'error'\n",
            "distributions.unexpected: got 'error', allowed is 'fail' or 'warn'",
        ),
        ("[profiles.c]\npython = 'three'\n", "profiles.c.python: got 'three', allowed is a version specifier"),
        ("[profiles.c]\n", "profiles.c.python: missing, it must be a string"),
        ("[profiles.c]\npython = 3\n", "profiles.c.python: got 3, allowed is a string"),
        ("[[profiles.a.torch]]\nversion = '2'\ngit-version = 'abc'\n", "profiles.a.torch[0].git-version: got 'abc'"),
        ("[[profiles.a.torch]]\ncuda = '13.0'\n", "profiles.a.torch[0].version: missing"),
    ],
)
def test_one_problem_is_one_line(tmp_path: Path, addition: str, problem: str) -> None:
    lines = problems(tmp_path, GOOD + addition)
    assert len(lines) == 1
    assert lines[0].startswith(problem)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = "schema = 1\nwaiver = 1\n[auto]\nwith-driver = 'z'\n[profiles.a]\npythn = '3'\n"
    assert problems(tmp_path, text) == [
        "profiles.a.python: missing, it must be a string",
        "profiles.a.pythn: unknown key, nearest known key: python (POL003)",
        "auto.with-driver: got 'z', allowed is a declared profile: a",
        "waiver: unknown key, nearest known key: waivers (POL003)",
    ]


def test_a_file_that_is_no_toml_is_one_line(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "schema = ")) == 1
    (tmp_path / "envguard.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="no valid TOML"):
        load_policy(tmp_path / "envguard.toml")


def test_auto_chooses_by_the_driver(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, GOOD))
    assert policy.profile("auto", has_driver=True).name == "a"
    assert policy.profile("b", has_driver=True).name == "b"
    with pytest.raises(PolicyError, match=r"no \[auto\] profile is set"):
        policy.profile("auto", has_driver=False)
    with pytest.raises(PolicyError, match="'c'; allowed: auto, a, b"):
        policy.profile("c", has_driver=False)


def test_the_nearest_policy_upwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert find_project().root == tmp_path
    with pytest.raises(PolicyError, match=r"there is no envguard\.toml in it"):
        find_project(tmp_path / "a")
    with pytest.raises(UsageError, match="no such directory"):
        find_project(tmp_path / "c")


def test_this_project_has_a_valid_policy() -> None:
    policy = load_policy(Path(__file__).parents[2] / "envguard.toml")
    assert [profile.name for profile in policy.profiles] == ["cu130", "cpu", "cu128"]
    assert policy.unexpected == "fail"
    assert policy.profile("auto", has_driver=True).name == "cu130"
    assert policy.profile("auto", has_driver=False).name == "cpu"
