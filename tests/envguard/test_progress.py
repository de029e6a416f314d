"""The bar is seen on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.envguard.scratch import Scratch

ROOT = Path(__file__).parents[2]


def deep(scratch: Scratch, stderr: int) -> subprocess.Popen[bytes]:
    with (scratch.site_packages / "alpha" / "big.bin").open("wb") as file:
        file.truncate(1_500_000_000)
    record = next(scratch.site_packages.glob("alpha-*.dist-info")) / "RECORD"
    record.write_text(record.read_text() + "alpha/big.bin,sha256=AAAA,1500000000\n")
    command = [sys.executable, "-m", "envguard", "check", "--deep", "--project", str(scratch.root)]
    command += ["--python", str(scratch.python), "--profile", "cpu"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr)


def test_a_terminal_sees_the_bar_and_is_left_clean(scratch: Scratch) -> None:
    mine, theirs = pty.openpty()
    process = deep(scratch, theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(mine, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        seen += piece
    out, _ = process.communicate()
    assert b"hashing [" in seen
    assert b"of 1.5 GB" in seen
    assert seen.endswith(b" \r")
    assert b"hashing [" not in out


def test_a_log_file_gets_no_bar(scratch: Scratch) -> None:
    out, err = deep(scratch, subprocess.PIPE).communicate()
    assert err == b""
    assert b"INT003" in out
