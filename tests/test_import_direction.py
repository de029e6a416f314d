"""envguard ◀ cache_tools ◀ dflash, and nothing heavy at the top of a module: the design, read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "datasets", "numpy", "triton", "safetensors"}
ALLOWED_OWN = {"envguard": set(), "cache_tools": {"envguard"}, "dflash": {"envguard", "cache_tools"}}
SOURCES = [path for package in ALLOWED_OWN for path in sorted((ROOT / package).rglob("*.py"))]


def imports(node: ast.AST, *, only_run: bool) -> Iterator[str]:
    """Top-level packages that ``node`` imports; ``only_run``: neither inside functions nor under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            yield (child.module or "").partition(".")[0]
        elif not (only_run and is_deferred(child)):
            yield from imports(child, only_run=only_run)


def is_deferred(node: ast.AST) -> bool:
    """Whether ``node`` does not run when its module is imported."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def imported(path: Path, *, only_run: bool = False) -> set[str]:
    return set(imports(ast.parse(path.read_text()), only_run=only_run))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    own = imported(path) & set(ALLOWED_OWN)
    assert own - {package} <= ALLOWED_OWN[package]
    if package == "envguard":
        assert imported(path) - {"envguard"} <= set(sys.stdlib_module_names) | {"packaging"}
    if package in ("envguard", "cache_tools") or "cli" in path.parts:
        assert not imported(path, only_run=True) & HEAVY


@pytest.mark.parametrize(
    "module",
    [
        "envguard.cli",
        "envguard.guard",
        "cache_tools.cli",
        "dflash.cli.entry",
        "dflash.cli.app",
        "dflash.doctor",
    ],
)
def test_a_command_line_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & (HEAVY | {"rich", "zstandard"})
