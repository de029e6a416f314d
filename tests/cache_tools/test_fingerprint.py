"""Grades, and an observation that imports no torch and keeps no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_tools.fingerprint import INPUTS, Fingerprint, Grade, Input, Verdict, compare
from cache_tools.observe import observe

from . import helpers


@pytest.mark.parametrize("name", [one.name for one in INPUTS])
@pytest.mark.parametrize("gpu_kernels", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_each_input_is_judged_by_its_grade(name: str, gpu_kernels: bool, strict: bool) -> None:
    found = compare(
        helpers.fingerprint(), helpers.fingerprint(**{name: "other"}), gpu_kernels=gpu_kernels, strict=strict
    )
    grade = next(one.grade for one in INPUTS if one.name == name)
    fatal = grade is Grade.FATAL or (grade is Grade.GPU and gpu_kernels) or (grade is Grade.STRICT and strict)
    different = [field for field in found.fields if field.verdict is not Verdict.SAME]
    assert [(field.name, field.here) for field in different] == [(name, "other")]
    assert different[0].verdict is (Verdict.FATAL if fatal else Verdict.DEGRADING)
    assert different[0].why


def test_another_key_version_is_fatal() -> None:
    other = Fingerprint(key_version=99, values={})
    assert [field.name for field in compare(other, helpers.fingerprint(), gpu_kernels=False).fatal] == ["key_version"]


@pytest.mark.parametrize("one", INPUTS, ids=lambda one: one.name)
def test_what_nobody_told_is_unknown_and_what_is_absent_is_a_value(one: Input) -> None:
    for before, now in (("x", None), (None, "x")):
        found = compare(
            helpers.fingerprint(**{one.name: before}),
            helpers.fingerprint(**{one.name: now}),
            gpu_kernels=True,
            strict=True,
        )
        (field,) = (field for field in found.fields if field.verdict is not Verdict.SAME)
        assert (field.verdict is Verdict.UNKNOWN) is one.told
        assert bool(found.fatal or found.degrading) is not one.told


def test_only_what_torch_knows_can_be_told() -> None:
    assert observe().with_told({"autocast": "off"}).values["autocast"] == "off"
    with pytest.raises(ValueError, match="torch_version: only"):
        observe().with_told({"torch_version": "3"})


def test_the_libraries_of_torch_are_told_without_reading_them(tmp_path: Path) -> None:
    def libtorch() -> str | None:
        return observe(tmp_path).values["libtorch"]

    info = tmp_path / "torch-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    assert libtorch() is None
    library = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"machine code")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.11.0'")
    record = "torch/__init__.py,sha256=x,1\ntorch/lib/libtorch_cpu.so,sha256=meqRII,12\n"
    (info / "RECORD").write_text(record)
    first = libtorch()
    assert first
    library.write_bytes(b"patched machine code")
    assert libtorch() not in (None, first), "replaced in place"
    library.write_bytes(b"machine code")
    (info / "RECORD").write_text(record.replace("meqRII", "other"))
    assert libtorch() not in (None, first), "another wheel of the same version"
    (info / "RECORD").write_text(record.replace("__init__", "other"))
    assert libtorch() == first, "Python files are in torch's own key"


def test_this_environment() -> None:
    values = observe(environ={**os.environ, "OMP_NUM_THREADS": "3"}).values
    assert values.keys() == {one.name for one in INPUTS}
    assert values["torch_version"] == "2.11.0+cu130"
    assert values["threads"] == "3"
    assert values["python"] == f"cpython {sys.version_info.major}.{sys.version_info.minor}"


def test_the_vector_isa_of_the_environment_is_fatal() -> None:
    plain = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    found = compare(
        observe(environ=plain), observe(environ=plain | {"ATEN_CPU_CAPABILITY": "default"}), gpu_kernels=False
    )
    assert "cpu_isa" in {field.name for field in found.fatal}


def test_settings_of_inductor_count_and_secrets_stay_out() -> None:
    environ = {
        **os.environ,
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_REDIS_URL": "redis://:hunter2@host:1",
        "TORCHINDUCTOR_SOMETHING_LONG": "hunter2-hunter2-hunter2",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    shown = observe(environ=environ).values["inductor_env"] or ""
    assert "TORCHINDUCTOR_MAX_AUTOTUNE=1" in shown
    assert "COMPILE_THREADS" not in shown
    assert "hunter2" not in shown


def test_torch_is_neither_imported_nor_needed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cache_tools.observe import observe; "
        f"values = observe(Path({str(tmp_path)!r})).values; "
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules; "
        "assert values['torch_version'] is None and values['triton'] is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("threads", ["8\r", "x" * 5000, "8\udcff"])
def test_what_no_manifest_can_hold_is_observed_as_its_digest(threads: str) -> None:
    value = observe(environ={**os.environ, "OMP_NUM_THREADS": threads}).values["threads"]
    assert value is not None
    assert value.startswith("sha256:")
