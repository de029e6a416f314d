"""The policy file is read strictly, and every problem is reported at once."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


def error(path: Path, today: datetime.date | None = None) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_policy(path, today)
    return str(caught.value).splitlines()


def test_each_problem_names_its_file_and_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, GOOD + '[distributions]\nforbid = """x"""\n[[profiles.a.torch]]\ncuda = "1"\n"x y" = [\n1]\n'
    )
    (tmp_path / "base.toml").write_text("schema = 1\n\n[files]\nallow = []\n")
    path.write_text(path.read_text().replace("schema = 1\n", 'schema = 1\nextends = "base.toml"\n'))
    assert error(path) == [
        f"{path}:11: profiles.a.torch[0].version: missing, it must be a string",
        f"{path}:13: profiles.a.torch[0].x y: unknown key, nearest known key: version (POL003)",
        f"{path}:10: distributions.forbid: got 'x', allowed is a list of strings",
        f"{tmp_path / 'base.toml'}:4: files.allow: unknown key, nearest known key: allow-unowned (POL003)",
    ]


def test_an_extended_file_is_merged_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "base.toml").write_text(
        "schema = 1\n[distributions]\nunexpected = 'fail'\nforbid = ['x', 'y']\nwatched = ['torch']\n"
        "[profiles.a]\npython = '==3.9.*'\ndriver = '>=1'\n[[profiles.a.torch]]\nversion = '1'\n"
    )
    (tmp_path / "org" / "late.toml").write_text(
        "schema = 1\nextends = 'base.toml'\n[distributions]\nwatched = ['numpy']\n[profiles.a]\ndriver = '>=2'\n"
    )
    top = "schema = 1\nextends = ['org/base.toml', 'org/late.toml']\n"
    path = write(tmp_path, top + "[distributions]\nforbid = ['z']\n[profiles.a]\npython = '>=3.11'\n")
    policy = load_policy(path)
    [profile] = policy.profiles
    assert (policy.unexpected, policy.forbid, policy.watched) == ("fail", ("z",), ("numpy",))
    assert (profile.python, profile.driver, profile.torch[0].version) == (">=3.11", ">=2", "1")
    assert str(policy.where("profiles", "a", "driver")) == f"{tmp_path / 'org' / 'late.toml'}:6"
    assert str(policy.where("profiles", "a", "python")) == f"{path}:6"
    assert str(policy.where("profiles", "a", "lock")) == f"{path}:5"


def test_a_circle_of_files_names_its_chain(tmp_path: Path) -> None:
    path = write(tmp_path, "schema = 1\nextends = 'b.toml'\n")
    (tmp_path / "b.toml").write_text("schema = 1\nextends = ['c.toml']\n")
    (tmp_path / "c.toml").write_text("schema = 1\nextends = './envguard.toml'\n")
    b, c = tmp_path / "b.toml", tmp_path / "c.toml"
    assert error(path) == [f"{c}: extends makes a circle: {path} -> {b} -> {c} -> {path}"]


def test_a_key_cannot_break_its_line(tmp_path: Path) -> None:
    [line] = problems(tmp_path, GOOD + '"a\\nb" = 1\n')
    assert line.startswith("profiles.b.a\\nb: unknown key")


def test_a_base_that_is_no_path(tmp_path: Path) -> None:
    path = write(tmp_path, 'schema = 1\nextends = "a\\u0000"\n')
    assert error(path) == [f"{path}:2: extends: got 'a\\x00', allowed is a path or a list of paths"]


def test_a_missing_base_names_its_chain(tmp_path: Path) -> None:
    path = write(tmp_path, "schema = 1\nextends = 'b.toml'\n")
    (tmp_path / "b.toml").write_text("schema = 1\nextends = 'gone.toml'\n")
    gone = tmp_path / "gone.toml"
    [line] = error(path)
    assert line.startswith(f"{gone} cannot be read: No such file or directory")
    assert f"{path} -> {tmp_path / 'b.toml'} -> {gone}" in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schema = 2\n", ":1: schema: got 2, this envguard reads schema = 1"),
        ("schema = true\n", ":1: schema: got True, this envguard reads schema = 1"),
        ("a = 1\n", ":1: schema: got None, this envguard reads schema = 1"),
        ("schema = 1\nextends = 3\n", ":2: extends: got 3, allowed is a path or a list of paths"),
        ("schema = 1\na = " + "[" * 5000 + "]" * 5000, " is nested too deeply to be a policy"),
    ],
)
def test_what_stops_the_reading(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    assert error(path) == [f"{path}{problem}"]


def test_a_profile_extends_another(tmp_path: Path) -> None:
    more = (
        "driver = '>=5'\npackages = { x = '1', y = '2' }\n[[profiles.b.torch]]\nversion = '1'\n"
        "[profiles.c]\nextends = 'b'\npackages = { y = '3' }\njit = true\n[profiles.d]\nextends = 'c'\ntorch = []\n"
    )
    policy = load_policy(write(tmp_path, GOOD + more))
    a, b, c, d = policy.profiles
    assert (c.python, c.driver, c.torch, c.packages, c.jit) == (
        b.python,
        ">=5",
        b.torch,
        (("x", "1"), ("y", "3")),
        True,
    )
    assert (d.torch, d.packages, d.jit) == ((), c.packages, True)
    assert a.driver is None
    assert policy.where("profiles", "d", "driver") == policy.where("profiles", "b", "driver")
    assert policy.where("profiles", "d", "driver").line == 8


def test_an_inherited_problem_points_to_where_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "driver = 'x'\n[profiles.c]\nextends = 'b'\n")
    assert [line.split(" ")[:2] for line in error(path)] == [
        [f"{path}:8:", "profiles.b.driver:"],
        [f"{path}:8:", "profiles.c.driver:"],
    ]


@pytest.mark.parametrize(
    ("profiles", "lines"),
    [
        (
            "[profiles.c]\nextends = 'd'\n[profiles.d]\nextends = 'c'\n",
            [
                "profiles.c.extends: makes a circle: c -> d -> c",
                "profiles.d.extends: makes a circle: d -> c -> d",
            ],
        ),
        ("[profiles.c]\nextends = 'c'\n", ["profiles.c.extends: makes a circle: c -> c"]),
        (
            "[profiles.c]\nextends = 'bb'\n",
            ["profiles.c.extends: got 'bb', allowed is the name of another profile, nearest: b"],
        ),
        (
            "[profiles.c]\nextends = 3\n",
            ["profiles.c.extends: got 3, allowed is the name of another profile, nearest: "],
        ),
    ],
)
def test_a_profile_that_extends_wrongly(tmp_path: Path, profiles: str, lines: list[str]) -> None:
    text = profiles.replace("]\n", "]\npython = '>=3'\n")
    found = problems(tmp_path, GOOD + text)
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True))


TODAY = datetime.date(2026, 3, 1)
WAIVER = "[[waivers]]\ncheck = 'PKG003'\nmatch = 'x'\nreason = 'r'\nowner = 'o'\nexpires = 2026-05-30\n"


def test_a_waiver_of_ninety_days_is_read(tmp_path: Path) -> None:
    [waiver] = load_policy(write(tmp_path, GOOD + WAIVER), TODAY).waivers
    assert (waiver.check, waiver.match, waiver.reason, waiver.owner) == ("PKG003", "x", "r", "o")
    assert waiver.expires == TODAY + datetime.timedelta(days=90)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "2026-05-30",
            "2026-05-31",
            "expires: got 2026-05-31, allowed is a day at most 90 days ahead, so 2026-05-30 at",
        ),
        ("2026-05-30", "'2026-05-30'", "expires: got '2026-05-30', allowed is a date without quotes"),
        ("2026-05-30", "2026-05-30T00:00:00", "expires: got 2026-05-30T00:00:00, allowed is a date"),
        ("'PKG003'", "'PKG033'", "check: got 'PKG033', allowed is the id of a check, nearest: PKG0"),
        ("'PKG003'", "'POL001'", "check: got 'POL001', allowed is the id of a check, nearest: "),
        ("owner = 'o'\n", "", "owner: missing, it must be a string"),
        ("reason = 'r'\n", "", "reason: missing, it must be a string"),
        ("match = 'x'\n", "", "match: missing, it must be a string"),
        ("check = 'PKG003'\n", "", "check: missing, it must be a string"),
        ("expires = 2026-05-30\n", "", "expires: missing, it must be a date such as"),
        ("reason = 'r'", "reason = ' '", "reason: got ' ', allowed is a string that is not empty"),
        ("owner", "ovner = 1\nowner", "ovner: unknown key, nearest known key: owner (POL003)"),
    ],
)
def test_a_waiver_is_read_strictly(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in WAIVER
    [line] = error(write(tmp_path, GOOD + WAIVER.replace(old, new, 1)), TODAY)
    assert f": waivers[0].{problem}" in line


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


def test_the_documented_policy_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "base.toml").write_text("schema = 1\n")
    policy = load_policy(write(tmp_path, example), datetime.date(2026, 8, 1))
    cpu, gpu = policy.profiles
    assert (gpu.python, gpu.deny_variables) == (cpu.python, ("LD_PRELOAD",))
    assert policy.waivers[0].owner == "training team"
    # Every field of the policy is in the example, so that the page misses no key.
    told = {**{name: getattr(policy, name) for name in policy.__slots__}, **{n: getattr(gpu, n) for n in gpu.__slots__}}
    assert [name for name, value in told.items() if not value] == []


WRONG = st.one_of(
    st.none(),  # the key is deleted
    st.integers(),
    st.booleans(),
    st.dates(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=2),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_policy_is_read_or_refused_with_lines(tmp_path: Path, data: st.DataObject) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    document = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    (tmp_path / "base.toml").write_text("schema = 1\n")
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = document
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and data.draw(st.booleans()):
                node = node[key]
                continue
            value = data.draw(WRONG)
            if value is None:
                del node[key]
            else:
                node[key] = value
            break
    path = write(tmp_path, tomli_w.dumps(document))
    try:
        load_policy(path, datetime.date(2026, 8, 1))
    except PolicyError as refused:
        for line in str(refused).splitlines():
            assert re.match(rf"{re.escape(str(tmp_path))}/.*?(:\d+: | cannot be read|: extends makes a circle)", line)


def test_this_project_has_a_valid_policy() -> None:
    policy = load_policy(Path(__file__).parents[2] / "envguard.toml")
    assert [profile.name for profile in policy.profiles] == ["cu130", "cpu", "cu128"]
    assert policy.unexpected == "fail"
    assert policy.profile("auto", has_driver=True).name == "cu130"
    assert policy.profile("auto", has_driver=False).name == "cpu"


@pytest.mark.parametrize(
    ("pins", "problem"),
    [
        ("six = 'banana'", "got 'banana', allowed is one version"),
        ("six = '==1.17.0'", "got '==1.17.0', allowed is one version"),
        ("six = '1'\nSix = '1'", "is the same distribution as Six"),
    ],
)
def test_a_pin_is_one_version_of_one_distribution(tmp_path: Path, pins: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"{GOOD}[profiles.b.packages]\n{pins}\n")
    assert problem in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('schema = 1\nextends = "/dev/zero"\n', "/dev/zero cannot be read: no regular file"),
        ("\ufeff" + GOOD, "begins with a byte order mark"),
        ("#" * (1 << 20) + "\n" + GOOD, "is larger than 1048576 bytes"),
    ],
    ids=["device", "byte order mark", "huge"],
)
def test_what_is_no_policy_file_is_refused_at_once(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(problem)):
        load_policy(write(tmp_path, text))
