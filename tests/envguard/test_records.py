"""RECORD: rows out of anything, and one identity for a wheel, for what uv and for what pip made of it."""

from __future__ import annotations

import ensurepip
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from envguard.envjson import freeze_document
from envguard.errors import ProbeError
from envguard.observe import look_closer, observe
from envguard.probes.records import Row, fingerprint, parse_record, summarize, wheel_fingerprint
from tests.envguard.scratch import Scratch, console_script, make_wheel


def installed_fingerprint(python: Path, name: str) -> str | None:
    [found] = [dist.fingerprint for dist in observe(python).distributions if dist.name == name]
    return found


@pytest.fixture(scope="module")
def by_pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip, which pip itself installed from the wheel that Python brings."""
    root = tmp_path_factory.mktemp("pip") / "venv"
    venv.create(root, with_pip=True)
    return root / "bin" / "python"


def test_one_identity_for_the_wheel_for_uv_and_for_pip(scratch: Scratch, by_pip: Path, tmp_path: Path) -> None:
    files = {
        "snake/__init__.py": "import this\n",
        "snake-1.0.data/purelib/snake_extra.py": "y = 1\n",
        "snake-1.0.data/scripts/snake-run": "#!python\nprint(1)\n",
        "snake-1.0.data/data/share/snake.txt": "z",
        **console_script("snake", "1.0", "hiss"),
    }
    wheel = make_wheel(tmp_path, "snake", "1.0", files)
    scratch.uv("pip", "install", "--no-index", "--no-deps", str(wheel))
    pip = [str(by_pip), "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    identity = wheel_fingerprint(wheel)
    assert installed_fingerprint(scratch.python, "snake") == identity
    assert installed_fingerprint(by_pip, "snake") == identity
    other = make_wheel(tmp_path, "snake", "1.1", {**files, "snake/__init__.py": "import that\n"})
    assert wheel_fingerprint(other) != identity


def test_the_same_for_a_real_package(scratch: Scratch, by_pip: Path) -> None:
    [wheel] = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    scratch.uv("pip", "install", "--no-index", str(wheel))
    assert (
        wheel_fingerprint(wheel) == installed_fingerprint(scratch.python, "pip") == installed_fingerprint(by_pip, "pip")
    )


def test_env_id_is_that_of_every_tier(scratch: Scratch) -> None:
    fast = observe(scratch.python)
    standard = look_closer(fast, watched=("torch",))
    deep = look_closer(fast, watched=("torch",), everything=True)
    again = observe(scratch.python)
    ids = {freeze_document(each)["env_id"] for each in (fast, standard, deep, again)}
    assert len(ids) == 1
    assert all(dist.fingerprint for dist in fast.distributions)
    record = scratch.site_packages / "beta-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("sha256=", "sha256=Z"))
    assert freeze_document(observe(scratch.python))["env_id"] not in ids


def test_an_editable_project_has_no_fingerprint_since_its_record_names_this_machine(scratch: Scratch) -> None:
    info = scratch.site_packages / "beta-1.0.dist-info"
    (info / "direct_url.json").write_text('{"url": "file:///somewhere", "dir_info": {"editable": true}}')
    assert installed_fingerprint(scratch.python, "beta") is None


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"a.py,sha256=x,3\n", [Row("a.py", "sha256=x", 3)]),
        (b"a.py,sha256=x,3\r\nb,,\r\n", [Row("a.py", "sha256=x", 3), Row("b", "", None)]),
        (b'"a,""b"".py",sha256=x,3\n', [Row('a,"b".py', "sha256=x", 3)]),
        (b"a,b.py,sha256=x,3\n", [Row("a,b.py", "sha256=x", 3)]),
        (b"a.py,sha256=x,minus\nb.py,sha256=x,-1\n", [Row("a.py", "sha256=x", None), Row("b.py", "sha256=x", None)]),
        (b"\n,,\nonly\ntwo,fields\n\0,a,1\n", []),
        (b"caf\xe9.py,sha256=x,1\n", [Row("caf\udce9.py", "sha256=x", 1)]),
        (b'"never closed,sha256=x,3\nb.py,sha256=y,1\n', []),
        (b"", []),
    ],
)
def test_rows_out_of_anything(data: bytes, rows: list[Row]) -> None:
    assert list(parse_record(data)) == rows


def test_what_an_installer_adds_is_no_part_of_the_identity() -> None:
    rows = [Row("a/__init__.py", "sha256=x", 1), Row("a-1.dist-info/METADATA", "sha256=y", 2)]
    added = [
        *(Row(f"a-1.dist-info/{name}", "sha256=q", 1) for name in ("INSTALLER", "REQUESTED", "direct_url.json")),
        Row("a-1.dist-info/uv_cache.json", "sha256=q", 1),
        Row("a-1.dist-info/RECORD", "", None),
        Row("a/__pycache__/__init__.cpython-311.pyc", "sha256=q", 9),
        Row("../../../bin/a", "sha256=q", 9),
        Row("/etc/a.conf", "sha256=q", 9),
    ]
    assert fingerprint(rows + added) == fingerprint(list(reversed(rows))) is not None
    assert fingerprint([*rows, Row("a/b.py", "sha256=q", 1)]) != fingerprint(rows)
    assert fingerprint(added) is None


def test_a_cut_record_is_a_problem_and_has_no_identity() -> None:
    rows = parse_record(b"a/__init__.py,sha256=x,1\na-1.dist-info/RECORD,,\n")
    assert summarize(rows, "a-1.dist-info").problem is None
    cut = summarize(rows[:1], "a-1.dist-info")
    assert cut.problem is not None
    assert cut.fingerprint is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive"])
def test_what_is_no_wheel_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.whl").write_bytes(content)
    with pytest.raises(ProbeError, match=r"a\.whl: is no readable wheel"):
        wheel_fingerprint(tmp_path / "a.whl")
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as archive:
        archive.writestr("a.py", "")
    with pytest.raises(ProbeError, match="0 RECORD files"):
        wheel_fingerprint(tmp_path / "b.whl")
