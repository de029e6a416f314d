"""Files that are not what was installed, in real environments made by uv: the id, the subject, the repair."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envguard import check_project
from envguard.findings import Finding, Tier
from envguard.probes.uvcache import changed_lines
from envguard.report import Report
from tests.envguard.scratch import TORCH_FILES, TRACE, Scratch, make_wheel

EDITED = TORCH_FILES[TRACE].replace("return _flag", "return False")


@pytest.fixture
def scratch(scratch: Scratch) -> Scratch:
    """A project that also watches a distribution which it does not have."""
    policy = scratch.root / "envguard.toml"
    policy.write_text(policy.read_text().replace('watched = ["torch", "alpha"]', 'watched = ["torch", "triton"]'))
    return scratch


def judge(scratch: Scratch, tier: Tier = "standard") -> Report:
    return check_project(scratch.root, "cpu", scratch.python, tier=tier)


def named(report: Report) -> list[tuple[str, str, str]]:
    return [(each.id, each.subject, each.status) for each in report.findings]


def only(report: Report) -> Finding:
    [finding] = report.findings
    return finding


def append(path: str, text: str) -> Callable[[Scratch], object]:
    def edit(scratch: Scratch) -> None:
        with (scratch.site_packages / path).open("a") as file:
            file.write(text)

    return edit


def write(path: str, text: str) -> Callable[[Scratch], object]:
    def edit(scratch: Scratch) -> None:
        place = scratch.site_packages / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return edit


def flip(path: str) -> Callable[[Scratch], object]:
    """Change the content and neither the size nor the time of modification."""

    def edit(scratch: Scratch) -> None:
        place = scratch.site_packages / path
        before = place.stat()
        place.write_bytes(place.read_bytes().swapcase())
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))

    return edit


def install(scratch: Scratch, name: str, files: dict[str, str], version: str = "1.0") -> None:
    make_wheel(scratch.root / "wheels", name, version, files)
    scratch.install(name, version)


def expect(scratch: Scratch, *names: str) -> None:
    """Let the project depend on ``names`` too."""
    path = scratch.root / "pyproject.toml"
    path.write_text(
        path.read_text().replace('"torch==2.11.0"', ", ".join(('"torch==2.11.0"', *(f'"{n}"' for n in names))))
    )
    scratch.uv("lock")
    scratch.uv("sync", "--locked")


def two_owners(scratch: Scratch) -> None:
    for name in ("left", "right"):
        make_wheel(scratch.root / "wheels", name, "1.0", {"shared/kernel.py": f"owner = {name!r}\n"})
    expect(scratch, "left", "right")


def unchecked_bytecode(scratch: Scratch) -> None:
    source = scratch.site_packages / "alpha" / "__init__.py"
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def lonely_bytecode(scratch: Scratch) -> None:
    source = scratch.root / "evil.py"
    source.write_text("1")
    py_compile.compile(str(source), cfile=str(scratch.site_packages / "beta" / "evil.pyc"))


def orphan_bytecode(scratch: Scratch) -> None:
    unchecked_bytecode(scratch)
    [cached] = (scratch.site_packages / "alpha" / "__pycache__").iterdir()
    cached.rename(cached.with_name(cached.name.replace("__init__", "gone")))


STARTUP = "import os; os.environ['SECRET'] = '1'\n"

DRIFT: dict[str, tuple[Callable[[Scratch], object], Tier, str, str, str]] = {
    "deleted file": (lambda s: (s.site_packages / "beta/__init__.py").unlink(), "standard", "INT001", "beta", "fail"),
    "cut file": (write("beta/__init__.py", ""), "standard", "INT001", "beta", "fail"),
    "a directory instead": (
        lambda s: [(s.site_packages / "beta/__init__.py").unlink(), (s.site_packages / "beta/__init__.py").mkdir()],
        "standard",
        "INT001",
        "beta",
        "fail",
    ),
    "a pipe instead": (
        lambda s: [(s.site_packages / "beta/__init__.py").unlink(), os.mkfifo(s.site_packages / "beta/__init__.py")],
        "standard",
        "INT001",
        "beta",
        "fail",
    ),
    "a link in a circle": (
        lambda s: [
            (s.site_packages / "beta/__init__.py").unlink(),
            (s.site_packages / "beta/__init__.py").symlink_to("__init__.py"),
        ],
        "standard",
        "INT001",
        "beta",
        "fail",
    ),
    "watched file edited": (append(TRACE, "x = 1\n"), "standard", "INT002", TRACE, "fail"),
    "watched file edited, same size and time": (flip(TRACE), "standard", "INT002", TRACE, "fail"),
    "other file edited, same size and time": (flip("beta/__init__.py"), "deep", "INT003", "beta", "fail"),
    "two owners": (two_owners, "standard", "INT004", "left, right", "fail"),
    "stray file": (write("torch/fx/backdoor.py", "x"), "standard", "INT005", "torch/fx/backdoor.py", "warn"),
    "stray package": (write("leftover/deep/__init__.py", ""), "standard", "INT005", "leftover/", "warn"),
    "empty package directory": (
        lambda s: (s.site_packages / "leftover").mkdir(),
        "standard",
        "INT005",
        "leftover/",
        "warn",
    ),
    "stray .pth with code": (write("zz.pth", STARTUP), "fast", "INT006", "zz.pth", "fail"),
    "stray .pth with a directory": (write("zz.pth", "/tmp\n"), "fast", "INT006", "zz.pth", "fail"),
    "sitecustomize": (write("sitecustomize.py", STARTUP), "fast", "INT006", "sitecustomize.py", "fail"),
    "usercustomize package": (
        write("usercustomize/__init__.py", STARTUP),
        "fast",
        "INT006",
        "usercustomize/__init__.py",
        "fail",
    ),
    "unchecked bytecode": (unchecked_bytecode, "deep", "INT007", "alpha/__pycache__", "warn"),
    "bytecode without source": (lonely_bytecode, "deep", "INT007", "beta/evil.pyc", "warn"),
    "orphan in __pycache__": (orphan_bytecode, "deep", "INT007", "alpha/__pycache__/gone", "warn"),
    "leftover namespace": (lambda s: (s.site_packages / "triton").mkdir(), "fast", "SHD001", "triton", "fail"),
    "leftover module": (write("triton/__init__.py", ""), "fast", "SHD001", "triton", "fail"),
    "torch without __init__": (
        lambda s: (s.site_packages / "torch/__init__.py").unlink(),
        "fast",
        "SHD001",
        "torch",
        "fail",
    ),
}


@pytest.mark.parametrize("kind", DRIFT)
def test_drift_is_named_in_its_tier_and_in_those_above(scratch: Scratch, kind: str) -> None:
    inject, tier, check_id, subject, status = DRIFT[kind]
    inject(scratch)
    tiers: list[Tier] = ["fast", "standard", "deep"]
    for lower in tiers[: tiers.index(tier)]:
        assert named(judge(scratch, lower)) == []
    report = judge(scratch, tier)
    [(got_id, got_subject, got_status)] = named(report)
    assert (got_id, got_status) == (check_id, status)
    assert got_subject.startswith(subject)
    assert report.exit_code == (1 if status == "fail" else 0)
    for upper in tiers[tiers.index(tier) :]:
        assert len(judge(scratch, upper).findings) == 1  # one cause, one finding


HEALED_BY_HAND = {"two owners", "stray file", "stray package", "empty package directory", "leftover module"}


@pytest.mark.parametrize("kind", sorted(DRIFT.keys() - HEALED_BY_HAND - {each for each in DRIFT if "bytecode" in each}))
def test_the_printed_repair_heals(scratch: Scratch, kind: str) -> None:
    if "__pycache__" in kind:
        return
    inject, tier, *_ = DRIFT[kind]
    inject(scratch)
    repair = judge(scratch, tier).repair
    assert repair is not None
    done = subprocess.run(repair, shell=True, env=scratch.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert judge(scratch, "deep").findings == ()


@pytest.mark.parametrize("tier", ["fast", "standard", "deep"])
def test_a_sound_environment_has_no_finding(clean: Scratch, tier: Tier) -> None:
    for _ in range(2):  # without and with what the first run remembers
        assert named(judge(clean, tier)) == []


def test_a_hundred_bad_files_are_one_finding(scratch: Scratch) -> None:
    install(scratch, "cowsay", {f"cowsay/m{number}.py": "x = 1\n" for number in range(100)}, "3.0")
    for number in range(90):
        (scratch.site_packages / f"cowsay/m{number}.py").unlink()
    finding = next(each for each in judge(scratch).findings if each.id == "INT001")
    assert finding.subject == "cowsay"
    assert "90 files" in finding.message
    assert "and 87 more" in finding.message


def test_a_cu12_and_a_cu13_wheel_that_write_one_file(scratch: Scratch) -> None:
    """The empty ``__init__`` that all of NVIDIA's namespace wheels bring is theirs by design."""
    for name in ("nvidia_a_cu13", "nvidia_b_cu13"):
        files = {"nvidia/__init__.py": "", f"nvidia/{name}/lib.so": name}
        make_wheel(scratch.root / "wheels", name, "1.0", files)
    expect(scratch, "nvidia-a-cu13", "nvidia-b-cu13")
    assert named(judge(scratch)) == []


def test_the_policy_can_allow_what_nobody_owns(scratch: Scratch) -> None:
    policy = scratch.root / "envguard.toml"
    policy.write_text(
        f'{policy.read_text()}\n[files]\nallow-unowned = ["leftover/*", "zz.pth"]\nallow-overlap = ["shared/*"]\n'
    )
    two_owners(scratch)
    write("zz.pth", STARTUP)(scratch)
    write("leftover/__init__.py", "")(scratch)
    assert named(judge(scratch)) == []


def test_bytecode_is_nobodys_business(scratch: Scratch) -> None:
    """pip records digests of bytecode, which Python rewrites."""
    record = next(scratch.site_packages.glob("alpha-*.dist-info")) / "RECORD"
    record.write_text(
        record.read_text() + "alpha/__pycache__/__init__.cpython-311.pyc,sha256=AAAA,5\nalpha/gone.pyc,,\n"
    )
    assert named(judge(scratch, "deep")) == []


# The case that costs people days: torch edited in place to get past the FX tracing flag.


@pytest.fixture
def linked(clean: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """An environment that uv installed by hard link from a cache of its own."""
    shutil.copytree(clean.root, tmp_path / "project", symlinks=True)
    shutil.rmtree(tmp_path / "project" / ".venv")
    scratch = Scratch(root=tmp_path / "project", cache=tmp_path / "uv-cache", link_mode="hardlink")
    scratch.uv("sync", "--locked", "--python", str(clean.python.resolve()))
    monkeypatch.setenv("UV_CACHE_DIR", str(scratch.cache))
    assert (scratch.site_packages / TRACE).stat().st_nlink > 1
    return scratch


def replace_file(path: Path, text: str) -> None:
    """As an editor that writes a new file does: the hard link is broken."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


def test_an_edit_is_named_with_its_lines(linked: Scratch) -> None:
    replace_file(linked.site_packages / TRACE, EDITED)
    finding = only(judge(linked))
    assert (finding.id, finding.subject) == ("INT002", TRACE)
    assert "(lines 5)" in finding.message
    assert "cache" not in finding.fix
    repair = judge(linked).repair
    assert repair is not None
    assert "cache clean" not in repair
    subprocess.run(repair, shell=True, env=linked.environ, check=True, capture_output=True)
    assert (linked.site_packages / TRACE).read_text() == TORCH_FILES[TRACE]
    assert judge(linked).findings == ()


def test_an_edit_through_a_hard_link_is_in_the_cache_too_and_the_repair_cleans_it(linked: Scratch) -> None:
    with (linked.site_packages / TRACE).open("w") as file:
        file.write(EDITED)
    report = judge(linked)
    finding = only(report)
    assert (finding.id, finding.subject) == ("INT002", TRACE)
    assert "uv cache clean torch" in finding.fix
    assert report.repair is not None
    assert "cache clean torch && " in report.repair

    subprocess.run(  # without it the edit comes back
        f"{report.repair.partition(' && ')[2]}", shell=True, env=linked.environ, check=True, capture_output=True
    )
    assert judge(linked).findings != ()

    subprocess.run(report.repair, shell=True, env=linked.environ, check=True, capture_output=True)
    assert (linked.site_packages / TRACE).read_text() == TORCH_FILES[TRACE]
    assert judge(linked).findings == ()


def test_another_environment_made_from_a_polluted_cache_is_recognised(linked: Scratch) -> None:
    with (linked.site_packages / TRACE).open("w") as file:
        file.write(EDITED)
    shutil.rmtree(linked.root / ".venv")
    linked.uv(
        "sync", "--locked", "--python", str(Path(os.__file__).parents[2] / "bin" / "python3"), "--link-mode", "copy"
    )
    finding = only(judge(linked))
    assert finding.subject == TRACE
    assert "uv cache clean torch" in finding.fix


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", "2"),
        ("a\nb\nc\nd\n", "a\nX\nY\nd\n", "2-3"),
        ("a\nb\nc\n", "a\nc\n", "after 1"),
        ("a\nb\n", "a\nb\nc\nd\n", "3-4"),
        ("a\nb\nc\nd\ne\n", "A\nb\nc\nd\nE\n", "1, 5"),
        ("a\n", "a\n", None),
        ("a\n", "", "after 0"),
        ("x\n" * 9000, "y\n" * 9000, "1-9000"),
    ],
)
def test_changed_lines(before: str, after: str, lines: str | None) -> None:
    assert changed_lines(before.encode(), after.encode()) == lines


def test_a_startup_file_that_python_would_wait_for_is_named_and_nothing_waits(scratch: Scratch) -> None:
    os.mkfifo(scratch.site_packages / "fifo.pth")
    report = judge(scratch)
    assert ("INT006", "fifo.pth", "fail") in named(report)
    (unasked,) = [finding for finding in report.findings if finding.id == "LCK001"]
    assert unasked.status == "error"
    assert "fifo.pth, which is no regular file" in unasked.message
