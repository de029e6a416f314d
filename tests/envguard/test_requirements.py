"""Requirements, origins and families in real environments: what fits together, by the packages' and the lock's word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envguard import check_project
from envguard.expect import expect, read_expected
from envguard.lock import load_lock
from envguard.observe import observe
from tests.envguard.scratch import Scratch, make_wheel

POLICY = 'schema = 1\n[distributions]\nallow = ["free-*"]\n[profiles.cpu]\npython = ">=3.11"\n'

PYPROJECT = """\
[project]
name = "needs"
version = "1.0"
requires-python = ">=3.11,<3.14"
dependencies = {dependencies}

[tool.uv]
package = false
no-index = true
find-links = ["wheels"]
{tool}
"""


@pytest.fixture
def home(clean: Scratch, tmp_path: Path) -> Scratch:
    """A project without an environment yet, beside a directory of wheels that refer to one another."""
    root = tmp_path / "needs"
    wheels = root / "wheels"
    wheels.mkdir(parents=True)
    (root / "envguard.toml").write_text(POLICY)

    def wheel(name: str, version: str, *requires: str) -> None:
        make_wheel(wheels, name, version, {f"{name}.py": ""}, requires)

    wheel("base", "1.0")
    wheel("base", "2.0")
    wheel("plugin", "1.0")
    wheel("needy", "1.0", "base>=2", "plugin; extra == 'all'", "never; python_version < '3'")
    wheel("asks", "1.0", "needy[all]")
    wheel("free_bird", "1.0", "base>=2", "nothing-of-this-name")
    wheel("torch", "2.11.0+cu130", "triton==3.6.0; sys_platform == 'linux'")
    wheel("triton", "3.6.0+git1")
    wheel("triton", "3.5.1")
    wheel("transformers", "5.6.0", "tokenizers<=0.23.0,>=0.22.0")
    wheel("tokenizers", "0.22.1")
    wheel("tokenizers", "0.24.0")
    for part in ("python", "cubin", "jit_cache"):
        wheel(f"flashinfer_{part}", "0.6.16" + ("+cu130" if part == "jit_cache" else ""))
        wheel(f"flashinfer_{part}", "0.6.14")
    return Scratch(root=root, cache=clean.cache)


def lock(scratch: Scratch, *dependencies: str, tool: str = "") -> None:
    text = PYPROJECT.format(dependencies=list(dependencies), tool=tool)
    (scratch.root / "pyproject.toml").write_text(text)
    scratch.uv("lock")
    scratch.uv("sync", "--locked", "--python", sys.executable)


def told(scratch: Scratch, *select: str) -> list[tuple[str, str, str]]:
    report = check_project(scratch.root, "cpu", scratch.python, tier="standard", select=select)
    return [(each.id, each.subject, each.message) for each in report.findings]


# PKG007


def test_what_uv_synced_is_satisfied(home: Scratch) -> None:
    lock(home, "asks", "torch")
    assert told(home) == []


def test_an_unsatisfied_requirement_of_an_allowed_distribution(home: Scratch) -> None:
    lock(home, "base==1.0")
    home.install("free-bird", "1.0")
    assert told(home) == [
        ("PKG007", "free-bird", "free-bird 1.0 requires base>=2, and base is 1.0"),
        (
            "PKG007",
            "free-bird",
            "free-bird 1.0 requires nothing-of-this-name, and nothing-of-this-name is not installed",
        ),
    ]
    (home.root / "uv.lock").unlink()
    assert [check_id for check_id, _, _ in told(home, "PKG007")] == ["PKG007", "PKG007"]


def test_what_the_lock_can_say_better_is_not_said_twice(home: Scratch) -> None:
    lock(home, "asks")
    home.install("base", "1.0")
    home.uv("pip", "uninstall", "plugin")
    assert [(check_id, subject) for check_id, subject, _ in told(home)] == [("PKG001", "plugin"), ("PKG002", "base")]


def test_extras_count_where_somebody_asks_for_them(home: Scratch) -> None:
    lock(home, "base==2.0")
    path = home.root / "envguard.toml"
    path.write_text(POLICY.replace("free-*", "*"))
    home.install("needy", "1.0")
    assert told(home) == []
    home.install("asks", "1.0")
    assert told(home) == [("PKG007", "needy", "needy 1.0 requires plugin, and plugin is not installed")]


REWRITES = {
    "dependency-metadata": '[[tool.uv.dependency-metadata]]\nname = "needy"\nversion = "1.0"\nrequires-dist = ["base"]',
    "dependency-metadata of any version": '[[tool.uv.dependency-metadata]]\nname = "needy"\nrequires-dist = []',
    "override-dependencies": 'override-dependencies = ["base<2"]',
    "exclude-dependencies": 'exclude-dependencies = ["base"]',
}


@pytest.mark.parametrize("kind", REWRITES)
def test_the_lock_rewrites_what_packages_say(home: Scratch, kind: str) -> None:
    with_base = [] if kind == "exclude-dependencies" else ["base<2"]
    lock(home, "needy", *with_base, tool=REWRITES[kind])
    assert told(home) == []
    path = home.root / "uv.lock"
    manifest, rest = path.read_text().split("[[package]]", 1)
    path.write_text(f"version = 1\n\n[[package]]{rest}")
    assert "manifest" in manifest
    assert [check_id for check_id, _, _ in told(home, "PKG007")] == ["PKG007"]


def test_another_version_keeps_its_own_metadata(home: Scratch) -> None:
    tool = '[[tool.uv.dependency-metadata]]\nname = "needy"\nversion = "1.0"\nrequires-dist = []'
    lock(home, "needy", "base==1.0", tool=tool)
    path = home.root / "uv.lock"
    path.write_text(path.read_text().replace('version = "1.0"\n', 'version = "9"\n', 1))
    assert [check_id for check_id, _, _ in told(home, "PKG007")] == ["PKG007"]


def test_an_expectation_survives_a_cache(home: Scratch) -> None:
    lock(home, "asks", tool="\n".join(each for each in REWRITES.values() if "tool.uv" not in each))
    expected = expect(load_lock(home.root / "uv.lock"), observe(home.python).interpreter.marker_environment())
    assert ("needy", "all") in expected.extras
    assert read_expected(expected.lock, json.loads(json.dumps(expected.document()))) == expected


def test_lines_that_nothing_can_read_are_passed_over(home: Scratch) -> None:
    lock(home, "base==2.0")
    metadata = home.site_packages / "base-2.0.dist-info" / "METADATA"
    lines = (
        "Requires-Dist: (no requirement\nRequires-Dist: x; no_marker == '1'\nRequires-Dist: y; python_version ~= 'x'\n"
    )
    metadata.write_text(metadata.read_text().replace("\n\n", f"\n{lines}\n", 1))
    assert told(home, "PKG007") == []


# PKG008


def test_a_wheel_from_a_file_is_not_from_the_index(home: Scratch) -> None:
    lock(home, "base==1.0")
    home.uv("pip", "install", "--reinstall", str(home.root / "wheels" / "base-1.0-py3-none-any.whl"))
    [(check_id, subject, message)] = told(home)
    assert (check_id, subject) == ("PKG008", "base")
    assert "installed from file://" in message
    assert message.endswith("uv.lock takes it from an index")
    repair = check_project(home.root, "cpu", home.python).repair
    assert repair is not None
    subprocess.run(repair, shell=True, env=home.environ, check=True, capture_output=True)
    assert told(home) == []


def package(directory: Path, name: str) -> Path:
    """A project that can be installed without any index."""
    directory.mkdir(parents=True)
    (directory / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n'
    )
    (directory / "backend.py").write_text(BACKEND.replace("NAME", name))
    return directory


BACKEND = """\
import zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = "NAME-1.0.dist-info"
    files = {
        "NAME.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"{directory}/NAME-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return "NAME-1.0-py3-none-any.whl"

build_editable = build_wheel
"""


def test_an_editable_install_of_another_checkout(home: Scratch) -> None:
    package(home.root / "lib", "lib")
    tool = '[tool.uv.sources]\nlib = { path = "lib", editable = true }'
    lock(home, "lib", tool=tool)
    assert told(home) == []
    other = package(home.root.parent / "other checkout", "lib")
    home.uv("pip", "install", "--no-deps", "-e", str(other))
    [(check_id, subject, message)] = told(home)
    assert (check_id, subject) == ("PKG008", "lib")
    assert f"editable file://{other}".replace(" checkout", "%20checkout") in message
    home.uv("pip", "install", "--no-deps", "--reinstall", str(home.root / "lib"))
    assert [check_id for check_id, _, _ in told(home)] == ["PKG008"]  # the right place, and not editable


def test_another_commit_of_a_repository(home: Scratch) -> None:
    repository = package(home.root.parent / "repository", "lib")

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        done = subprocess.run(
            ["git", "-C", str(repository), *who, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    lock(home, "lib", tool=f'[tool.uv.sources]\nlib = {{ git = "file://{repository}" }}')
    assert told(home) == []
    first = git("rev-parse", "HEAD")
    (repository / "new").write_text("")
    git("add", ".")
    git("commit", "-q", "-m", "second")
    second = git("rev-parse", "HEAD")
    home.uv("pip", "install", "--no-deps", f"lib @ git+file://{repository}@{second}")
    [(check_id, subject, message)] = told(home)
    assert (check_id, subject) == ("PKG008", "lib")
    assert first in message
    assert second in message


# PKG009


@pytest.mark.parametrize(
    ("locked", "installed", "subject"),
    [
        (("torch",), ("triton", "3.5.1"), "torch"),
        (("transformers",), ("tokenizers", "0.24.0"), "transformers"),
    ],
)
def test_a_family_out_of_step(home: Scratch, locked: tuple[str, ...], installed: tuple[str, str], subject: str) -> None:
    lock(home, *locked)
    assert told(home) == []
    home.install(*installed)
    assert [(check_id, name) for check_id, name, _ in told(home)] == [("PKG002", installed[0]), ("PKG009", subject)]


def test_parts_of_flashinfer_have_one_public_version(home: Scratch) -> None:
    (home.root / "envguard.toml").write_text(POLICY.replace("free-*", "*"))
    lock(home, "base")
    for part in ("python", "cubin"):
        home.install(f"flashinfer-{part}", "0.6.16")
    home.install("flashinfer-jit-cache", "0.6.16+cu130")
    assert told(home) == []
    home.install("flashinfer-cubin", "0.6.14")
    assert [(check_id, subject) for check_id, subject, _ in told(home)] == [("PKG009", "flashinfer-cubin")]


def test_the_projects_own_environment_is_satisfied() -> None:
    root = Path(__file__).parents[2]
    report = check_project(root, tier="standard", select=["PKG007", "PKG008", "PKG009", "ENV003", "ENV006", "CUD004"])
    assert report.findings == ()
    assert {"PKG007", "PKG008", "PKG009"} <= set(report.passed)
