"""The self-test of the drift job: the gate is shut for each kind of drift, and open again once it is repaired.

In: nothing, or names of kinds from ``tests/envguard/kinds.py``. Out: one line a kind on stdout; exit 1 where the job
passes on drift, names another check, or still fails after the repair. It works on a scratch uv project with tiny wheels
in a temporary directory and needs no index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # not PYTHONPATH, which is drift

from envguard.cliutil import run, say, write_out  # noqa: E402
from envguard.errors import FINDINGS, OK, UsageError  # noqa: E402
from tests.envguard.kinds import DRIFT, Drift, heal, judge  # noqa: E402
from tests.envguard.scratch import Scratch, make_scratch  # noqa: E402

KINDS = (
    "extra",
    "wrong version",
    "missing",
    "file edited",
    "file deleted",
    "two dist-infos",
    "RECORD gone",
    "cu12 beside cu13",
    "other build of torch",
    "stale lock",
    "lock gone",
    "watched package moved against a commit",
    "forbidden",
    "stray .pth",
    "unknown key in the policy",
)


def main(arguments: Sequence[str]) -> int:
    """Try each kind; 0 where the job is right about all of them."""
    kinds = list(arguments) or list(KINDS)
    if unknown := [kind for kind in kinds if kind not in DRIFT]:
        raise UsageError(f"no kind of drift is called {unknown[0]!r}; known: {', '.join(DRIFT)}")
    with tempfile.TemporaryDirectory(prefix="drift-self-test-") as home:
        clean = make_scratch(Path(home) / "clean", Path(home) / "uv-cache")
        wrong = [] if job(clean, None).returncode == OK else ["the job fails on a sound environment"]
        for number, kind in enumerate(kinds):
            say(f"{number + 1} of {len(kinds)}: {kind}")
            scratch = clean.copy(Path(home) / f"project-{number}")
            fault = attempt(scratch, DRIFT[kind])
            write_out(
                f"{'ok  ' if fault is None else 'FAIL'}  {DRIFT[kind].id}  {kind}{f': {fault}' if fault else ''}\n"
            )
            wrong += [kind] if fault else []
    say(f"self-test: {len(kinds) - len(wrong)} of {len(kinds)} kinds of drift shut the gate, and repairs open it")
    return FINDINGS if wrong else OK


def attempt(scratch: Scratch, drift: Drift) -> str | None:
    """Inject, judge, repair, judge; what the job does wrong, or None."""
    drift.inject(scratch)
    done = job(scratch, drift)
    if done.returncode != drift.exit_code:
        return f"exit {done.returncode} where {drift.exit_code} is right: {done.stdout}{done.stderr}"
    named = done.stderr if drift.refused else done.stdout
    if drift.id not in named or drift.subject not in named:
        return f"{drift.id} {drift.subject} is not named: {named}"
    heal(scratch, drift, judge(scratch, drift))
    healed = job(scratch, drift)
    return None if healed.returncode == OK else f"still exit {healed.returncode} after the repair: {healed.stdout}"


def job(scratch: Scratch, drift: Drift | None) -> subprocess.CompletedProcess[str]:
    """``ci/drift`` on the scratch project, in a shell where no CI names a base."""
    arguments = drift.arguments if drift else ()
    command = [str(ROOT / "ci" / "drift"), "--project", str(scratch.root), "--python", str(scratch.python), *arguments]
    environ = {**scratch.environ, **(drift.environ(scratch) if drift else {})}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(run("drift", main))
