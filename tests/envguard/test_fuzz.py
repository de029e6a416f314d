"""Whatever lies in an environment, observing, judging, freezing and reporting it neither raises nor waits nor runs it.

Each of the files that the observation reads gets hundreds of contents: arbitrary bytes, and real contents with pieces
cut out, doubled and replaced; then the file itself becomes something else: empty, cut, huge, a directory, a pipe, a
circle.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envguard.envjson import freeze_document
from envguard.errors import ProbeError
from envguard.findings import run_checks
from envguard.frozen import replace
from envguard.guard import inspect
from envguard.inspection import Inspection
from envguard.observe import look_closer, observe
from envguard.probes.interpreter import find_interpreter
from envguard.registry import CHECKS
from envguard.statcache import StatCache
from tests.envguard.scratch import Scratch, torch_version_file

EXAMPLES = 640
"""For each of the files: 5,120 in all."""
INFO = "torch-2.11.0.dist-info"
SITE = "lib/python{}.{}/site-packages".format(*sys.version_info[:2])
NO_CACHE = StatCache(directory=None)
WATCHED = ("torch", "triton")

# Each file that is read, and what it really holds.
FILES: dict[str, bytes] = {
    f"{SITE}/{INFO}/METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n"
    b"Requires-Dist: triton>=3; extra == 'a'\n\nText",
    f"{SITE}/{INFO}/RECORD": b"torch/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
    b'"a,b",,\n../../../bin/x,sha256=a,1\nx.pth,sha256=a,1\n' + f"{INFO}/RECORD,,\n".encode(),
    f"{SITE}/{INFO}/direct_url.json": b'{"url": "https://a/b", "vcs_info": {"vcs": "git", "commit_id": "0123"},'
    b' "dir_info": {"editable": true}}',
    f"{SITE}/torch/version.py": torch_version_file().encode(),
    f"{SITE}/x.pth": b"import os; os.x = 1\n/usr\n../..\n# comment\n",
    "pyvenv.cfg": b"home = /usr/bin\nimplementation = CPython\ninclude-system-site-packages = true\n"
    + "version_info = {}.{}.0\n".format(*sys.version_info[:2]).encode(),
    f"{SITE}/{INFO}/INSTALLER": b"uv\n",
    f"{SITE}/{INFO}/entry_points.txt": b"[console_scripts]\ntorchrun = torch:main\nx=y:z [extra]\n[other]\na = b\n",
}
OPTIONAL = (f"{SITE}/torch/__init__.py", "bin/python")

INTERESTING = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\r",
        b"\x85",
        b"\xe2\x80\xa8",
        b"\xed\xb3\xa9",
        b'"',
        b",",
        b"\n",
        b"\\",
        b"[" * 3000,
        b"{",
    ),
    *(
        b"../",
        b"/",
        b"//",
        b"..",
        b"~",
        b"*",
        b"sha256=",
        b"md5=",
        b"9" * 400,
        b"-1",
        b"nan",
        b"import ",
        b"\x00" * 40,
        b"%s{}",
    ),
)


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """``valid`` with some pieces cut, doubled or replaced."""
    data = valid
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        piece = draw(st.sampled_from([b"", data[start:end] * 2, *INTERESTING]))
        data = data[:start] + piece + data[end:]
    return data[: draw(st.one_of(st.none(), st.integers(0, len(data))))]


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The skeleton of an environment with one distribution."""
    root = tmp_path_factory.mktemp("fuzz") / "venv"
    for name, content in FILES.items():
        put(root / name, content)
    for name in OPTIONAL:
        put(root / name, b"")
    (root / "bin/python").chmod(0o755)
    return root


@pytest.fixture(scope="module")
def case(clean: Scratch) -> Inspection:
    return inspect(clean.root, "cpu", clean.python, tier="fast")


def is_lost(venv: Path) -> bool:
    """Whether nothing says any more where the packages lie: a refusal that says what to do, the only one there is."""
    try:
        return not find_interpreter(venv).site_packages.is_dir()
    except ProbeError as error:
        return "recreate the venv" in str(error)


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def judge(venv: Path, case: Inspection, *, everything: bool) -> None:
    """Everything that a command does with an environment; a crash of a check is a finding that names it."""
    quick = observe(venv, environ={}, watched=WATCHED, cache=NO_CACHE)
    closer = look_closer(quick, watched=WATCHED, everything=everything, environ={"HOME": str(venv)}, cache=NO_CACHE)
    document = freeze_document(closer)
    assert len(document["env_id"]) == 64
    findings = run_checks(CHECKS, replace(case, observation=closer))
    assert [each.message for each in findings if "which is a bug" in each.message] == []


@pytest.mark.parametrize("name", FILES)
def test_any_content_is_observed(venv: Path, case: Inspection, name: str) -> None:
    valid = FILES[name]

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(content=st.one_of(mutated(valid), mutated(valid), st.binary(max_size=120)), everything=st.booleans())
    def observes(content: bytes, everything: bool) -> None:
        (venv / name).write_bytes(content)
        if name == "pyvenv.cfg" and is_lost(venv):
            return
        judge(venv, case, everything=everything)

    try:
        observes()
    finally:
        (venv / name).write_bytes(valid)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def circle_above(path: Path) -> None:
    path.symlink_to("..", target_is_directory=True)


KINDS: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "endless line": lambda path: path.write_bytes(b"a" * 3_000_000),
    "very many lines": lambda path: path.write_bytes(b"a,b,1\n" * 200_000),
    "a terabyte": sparse,
    "a directory": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a circle": circle,
    "a circle through the parent": circle_above,
    "a dead link": lambda path: path.symlink_to("/nonexistent/file"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": lambda path: [path.write_bytes(b"a"), path.chmod(0)],
}


@pytest.fixture
def own(venv: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(venv, tmp_path / "venv"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_file_is_observed(own: Path, case: Inspection, kind: str) -> None:
    for name in FILES.keys() - {"pyvenv.cfg"} | {f"{SITE}/{INFO}", f"{SITE}/torch", f"{SITE}/torch/__init__.py"}:
        path = own / name
        shutil.move(path, own / "kept")
        KINDS[kind](path)
        judge(own, case, everything=kind != "a terabyte")
        if path.is_symlink() or path.is_file() or path.is_fifo():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        shutil.move(own / "kept", path)


def test_names_that_are_no_text(own: Path, case: Inspection) -> None:
    site = os.fsencode(own / SITE)
    for name in (b"caf\xe9.py", b"caf\xe9.dist-info", b"\xff.pth", b"a\nb", b"a\x1b[31m.egg-info"):
        os.makedirs(site + b"/" + name) if name.endswith(b"info") else open(site + b"/" + name, "wb").close()
    judge(own, case, everything=True)
