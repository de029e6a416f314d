"""The drift job: the environment by one profile, then the lock of every other profile, then a SARIF file if wanted.

In: the options of ``ci/drift``, and what GitHub or GitLab say in the environment. Out: reports on stdout (annotations
where GITHUB_ACTIONS is set) and the gravest exit code. It only calls ``envguard check``, and repairs nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # not PYTHONPATH, which is drift

from envguard.cli import main as envguard  # noqa: E402
from envguard.cliutil import run, say  # noqa: E402
from envguard.errors import CRASHED, FINDINGS, OK, USAGE  # noqa: E402
from envguard.policy import load_policy  # noqa: E402
from envguard.project import find_project  # noqa: E402

GRAVITY = (OK, FINDINGS, CRASHED, USAGE)
"""From the lightest to the gravest: where nothing could be judged, findings may be missing."""


def main(arguments: list[str]) -> int:
    """Judge everything; no report keeps another from being made."""
    options, rest = build_parser().parse_known_args(arguments)
    place = ["--project", str(options.project), "--python", str(options.python)]
    base = ["--base", options.base] if options.base else []
    style = ["--format", "github"] if os.environ.get("GITHUB_ACTIONS") == "true" else []
    codes = [envguard(["check", *place, "--profile", options.profile, *base, *style, *rest])]
    if codes == [USAGE]:
        return USAGE  # and it has said what is wrong
    for profile in other_locks(options.project, options.profile):
        say(f"the lock of profile {profile}:")
        codes.append(envguard(["check", *place, "--profile", profile, *base, *style, "--select", "LCK"]))
    if options.sarif:
        sarif = ["--format", "sarif", "--output", str(options.sarif)]
        codes.append(envguard(["check", *place, "--profile", options.profile, *base, *rest, *sarif]))
    return max(codes, key=lambda code: GRAVITY.index(code) if code in GRAVITY else len(GRAVITY))


def build_parser() -> argparse.ArgumentParser:
    """The job's own options; what it does not know is handed to ``envguard check``."""
    parser = argparse.ArgumentParser(prog="ci/drift", allow_abbrev=False)
    own = ROOT / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")
    parser.add_argument("--project", type=Path, default=ROOT)
    parser.add_argument("--python", type=Path, default=own / "bin" / "python")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--base", default=named_base(), help="revision to compare locks with (default: what CI names)")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="also write a SARIF file")
    return parser


def named_base() -> str | None:
    """DRIFT_BASE, else the base of a GitHub pull request or a GitLab merge request; None on a plain branch."""
    if branch := os.environ.get("GITHUB_BASE_REF"):
        branch = f"origin/{branch}"
    return os.environ.get("DRIFT_BASE") or branch or os.environ.get("CI_MERGE_REQUEST_DIFF_BASE_SHA") or None


def other_locks(project: Path, judged: str) -> list[str]:
    """One profile for each lock that judging the profile ``judged`` does not look at; in the policy's order."""
    policy = load_policy(find_project(project).policy)
    seen = {profile.lock for profile in policy.profiles if profile.name == judged}
    chosen = []
    for profile in policy.profiles:
        if profile.lock not in seen:
            seen.add(profile.lock)
            chosen.append(profile.name)
    return chosen


if __name__ == "__main__":
    raise SystemExit(run("drift", main))
