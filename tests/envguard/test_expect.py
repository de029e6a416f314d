"""What a lock expects: markers of the judged interpreter, extras, groups, and this project's own two numpys."""

from __future__ import annotations

from pathlib import Path

import pytest

from envguard.errors import LockError
from envguard.expect import expect
from envguard.lock import load_lock
from envguard.observe import observe
from envguard.probes.interpreter import find_interpreter
from tests.envguard.scratch import Scratch

OWN_LOCK = Path(__file__).parents[2] / "uv.lock"


def environment(python: str, **changes: str) -> dict[str, str]:
    minor = ".".join(python.split(".")[:2])
    return {
        **find_interpreter().marker_environment(),
        "python_version": minor,
        "python_full_version": python,
        **changes,
    }


def locked_versions(name: str) -> dict[str, str]:
    """The lock's versions of ``name``, by the marker that each holds under (uv's text, not our reader's)."""
    blocks = [block for block in OWN_LOCK.read_text().split("[[package]]") if f'\nname = "{name}"\n' in block]
    return {
        "new" if "python_full_version >= '3.12'" in block.split("sdist")[0] else "old": block.split('version = "')[
            1
        ].split('"')[0]
        for block in blocks
    }


@pytest.mark.parametrize(("python", "fork"), [("3.11.7", "old"), ("3.12.0", "new"), ("3.13.5", "new")])
def test_each_python_gets_its_own_numpy(python: str, fork: str) -> None:
    versions = locked_versions("numpy")
    assert versions["old"] != versions["new"]
    assert expect(load_lock(OWN_LOCK), environment(python)).required["numpy"] == versions[fork]


def test_markers_decide_what_is_required() -> None:
    lock = load_lock(OWN_LOCK)
    linux = expect(lock, environment("3.11.7", sys_platform="linux", platform_machine="x86_64"))
    mac = expect(lock, environment("3.11.7", sys_platform="darwin", platform_machine="arm64"))
    assert "nvidia-curand" in linux.required  # only through an extra of cuda-toolkit
    assert "nvidia-curand" not in mac.required
    assert {"torch", "pytest", "gguf", "dflash-toolkit"} <= set(mac.required)


def test_default_groups_are_required_and_the_rest_is_optional(clean: Scratch) -> None:
    expected = expect(load_lock(clean.root / "uv.lock"), environment("3.11.7"))
    assert expected.required == {"alpha": "1.0", "beta": "1.0", "gamma": "1.0", "torch": "2.11.0"}
    assert expected.optional == {"delta": "1.0", "epsilon": "1.0"}
    assert expected.knows("delta")
    assert not expected.knows("cowsay")


@pytest.mark.parametrize("groups", ['default-groups = ["docs"]', 'default-groups = "all"', "default-groups = []"])
def test_other_default_groups(scratch: Scratch, groups: str) -> None:
    path = scratch.root / "pyproject.toml"
    path.write_text(path.read_text().replace("[tool.uv]", f"[tool.uv]\n{groups}"))
    scratch.uv("sync")
    installed = {dist.name for dist in observe(scratch.python).distributions}
    assert set(expect(load_lock(scratch.root / "uv.lock"), environment("3.11.7")).required) == installed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1\n", "is not as uv writes it"),
        ("version = 1\npackage = [1]\n", "is not as uv writes it"),
        (
            'version = 1\n[[package]]\nname = "a"\nversion = "1"\nsource = { registry = "r" }\n',
            "no package for its own",
        ),
        ("version = 1\nconflicts = [[{ package = 'a', extra = 'b' }]]\n", "conflicting extras"),
    ],
)
def test_a_lock_of_an_unknown_form_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "uv.lock").write_text(text)
    with pytest.raises(LockError, match=message):
        load_lock(tmp_path / "uv.lock")
