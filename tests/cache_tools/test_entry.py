"""Plain calls skip typer, and mean the same; everything else is typer's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cache_tools import entry, units
from envguard.errors import UsageError


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("snapshot --name a", True),
        ("snapshot /x --name a --store /s --json", True),
        ("restore a --to /x --replace --json --dry-run", True),
        ("restore a --force", False),
        ("restore", False),
        ("restore a b", False),
        ("snapshot", False),
        ("snapshot --name", False),
        ("snapshot --name --json", False),
        ("snapshot --name=a", False),
        ("snapshot --name a --name b", False),
        ("snapshot a b --name c", False),
        ("snapshot --help", False),
        ("snapshot -- --name", False),
        ("list", False),
        ("", False),
    ],
)
def test_what_is_plain(line: str, plain: bool) -> None:
    assert (entry.plain_call(line.split()) is not None) is plain


def test_a_plain_call_imports_no_typer() -> None:
    code = (
        "import sys; from cache_tools.entry import main; code = main(['restore', 'x', '--store', '/nowhere']); "
        "assert code == 2, code; assert not {'typer', 'pydantic', 'rich', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600)])
def test_durations(text: str, seconds: float) -> None:
    assert units.seconds(text) == seconds


@pytest.mark.parametrize(("text", "size"), [("10", 10), ("1kB", 1000), ("20GB", 20 * 10**9), ("1.5 GiB", 3 << 29)])
def test_sizes(text: str, size: int) -> None:
    assert units.size(text) == size


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1y", "1e9d", "²d"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        units.seconds(text)


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1e9"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        units.size(text)
