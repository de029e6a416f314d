"""``dflash doctor`` on a terminal: colours where they are wanted, and plain text where rich has drifted."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def on_a_terminal(*arguments: str, **environ: str) -> tuple[int, str]:
    """Exit code of ``dflash`` and what the terminal shows."""
    return on_a_terminal_runs([sys.executable, "-m", "dflash.cli.entry", *arguments], **environ)


def on_a_terminal_runs(command: list[str], **environ: str) -> tuple[int, str]:
    """Exit code of a command and what the terminal shows."""
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **environ}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=terminal, stderr=subprocess.STDOUT)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(main, 65536):
            shown += part
    except OSError:  # how Linux tells that the other end of a terminal is closed
        pass
    os.close(main)
    return process.wait(), shown.decode().replace("\r\n", "\n")


def plain(text: str) -> str:

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_colour_says_the_same_as_the_text() -> None:
    code, coloured = on_a_terminal("doctor", FLA_X="[bold]not markup[/bold]")
    text = subprocess.run(
        [sys.executable, "-m", "dflash.cli.entry", "doctor"],
        cwd=ROOT,
        env={**os.environ, "FLA_X": "[bold]not markup[/bold]"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert code == text.returncode == 0
    assert "\x1b[" in coloured
    assert "\x1b[" not in text.stdout
    assert plain(coloured) == text.stdout
    assert "RUN001" in text.stdout


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_nobody_wants_it(environ: dict[str, str]) -> None:
    code, shown = on_a_terminal("doctor", **environ)
    assert code == 0
    assert "\x1b[" not in shown
    assert "ok: the environment is what the lock and the policy say" in shown


@pytest.mark.parametrize("body", ["raise RuntimeError('half a package')", "", "def ("])
def test_a_broken_rich_leaves_plain_text(tmp_path: Path, body: str) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text(body)
    code, shown = on_a_terminal("doctor", PYTHONPATH=str(tmp_path))
    assert code == 0
    assert "\x1b[" not in shown
    assert "Traceback" not in shown
    assert "warn   ENV004  PYTHONPATH is set to" in shown
