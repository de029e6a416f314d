"""The policy: what ``envguard.toml`` says that an environment must be.

In: the file (``policyfile.py`` reads it with all that it extends). Out: a frozen ``Policy`` with its profiles. It is
strict: an unknown key, a wrong type or a value outside its range is a problem, and all problems are reported together,
each with its file and line. It knows nothing of what is installed and does not read the lock; globs and specifiers are
kept as text, the checks interpret them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from envguard.errors import PolicyError
from envguard.frozen import NOTHING, Frozen
from envguard.pkg import canonical, specifier_set, version
from envguard.policyfile import Document, Place, describe, read_document
from envguard.strict import StrictTable, Trouble
from envguard.tomllines import Key

FILE_NAME = "envguard.toml"
MAX_WAIVER_DAYS = 90
DEFAULT_WATCHED = ("torch", "transformers", "triton", "tokenizers", "safetensors", "numpy")

Severity = Literal["fail", "warn"]


class TorchRule(Frozen):
    """One accepted build of torch; a field that is None is not judged."""

    version: str
    """With the local label, such as ``2.11.0+cu130``."""
    cuda: str | None = None
    git_version: str | None = None


class Profile(Frozen):
    """One kind of environment that the project supports."""

    name: str
    python: str
    """Specifier of the accepted Python versions, such as ``>=3.11,<3.14``."""
    lock: str
    """The uv.lock, relative to the policy file."""
    unlocked: str | None = None
    """Why the lock is not there yet: its absence is then skipped with this reason instead of failed."""
    torch: tuple[TorchRule, ...] = ()
    """The accepted builds; empty where torch is not judged."""
    driver: str | None = None
    """Specifier of the NVIDIA driver; None: the table of minimal drivers for torch's CUDA release."""
    packages: tuple[tuple[str, str], ...] = ()
    """Pinned (name, version) pairs that hold whatever the lock says."""
    deny_variables: tuple[str, ...] = ()
    """Globs of environment variables that must not be set."""
    allow_variables: tuple[str, ...] = ()
    """Globs of environment variables that may be set although they change results or what is imported."""
    require_variables: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs that the environment must hold."""
    jit: bool = False
    """Whether the project compiles CUDA code itself, so that nvcc has to fit torch's CUDA release."""


class Waiver(Frozen):
    """One finding that is known, accepted and owned, until a day."""

    check: str
    """Id of the check."""
    match: str
    """Glob on the finding's subject."""
    reason: str
    owner: str
    expires: datetime.date
    """The last day on which it holds; at most ``MAX_WAIVER_DAYS`` ahead."""


class Policy(Frozen):
    """One parsed ``envguard.toml``."""

    path: Path
    unexpected: Severity
    """What a distribution that the lock does not name weighs."""
    allow: tuple[str, ...]
    """Globs of distributions that may be there although the lock does not name them."""
    forbid: tuple[str, ...]
    """Globs of distributions and import directories that must not be there."""
    watched: tuple[str, ...]
    """Distributions whose code decides results: their files are hashed in the standard tier, their imports must
    resolve to their own files, and the lock may not move them in passing (LCK003)."""
    allow_unowned: tuple[str, ...]
    """Globs of paths in site-packages that no RECORD needs to name."""
    allow_overlap: tuple[str, ...]
    """Globs of paths that two distributions may both own."""
    recorded: str | None
    """An ``env.json`` of the good environment, relative to the policy file, that builds and code are compared with."""
    source: tuple[str, ...]
    """The project's own code: directories or files, relative to the policy file."""
    waivers: tuple[Waiver, ...]
    auto_with_driver: str | None
    auto_without_driver: str | None
    profiles: tuple[Profile, ...]
    places: Mapping[Key, Place] = NOTHING
    """Where each key of the policy stands."""

    def where(self, *key: str | int) -> Place:
        """The place of ``key``, or else of the nearest table that holds it."""
        return Document(path=self.path, table={}, places=self.places).place(key)

    def profile(self, name: str, *, has_driver: bool) -> Profile:
        """The profile called ``name``; ``auto`` chooses by the presence of an NVIDIA driver.

        Raises:
            PolicyError: no profile has this name, or ``auto`` has nothing to choose.
        """
        names = ", ".join(profile.name for profile in self.profiles)
        wanted: str | None = name
        if name == "auto":
            wanted = self.auto_with_driver if has_driver else self.auto_without_driver
            if wanted is None and len(self.profiles) == 1:
                wanted = self.profiles[0].name
            if wanted is None:
                raise PolicyError(f"{self.path}: no [auto] profile is set, so name one: --profile ({names})")
        for profile in self.profiles:
            if profile.name == wanted:
                return profile
        raise PolicyError(f"{self.path}: no profile is called {wanted!r}; allowed: auto, {names}")


def load_policy(path: Path, today: datetime.date | None = None) -> Policy:
    """Read and validate a policy file; ``today`` (in UTC by default) is the day that waivers are measured from.

    Raises:
        PolicyError: the file or one that it extends cannot be read, is no TOML, or breaks the schema (every problem
            in one message).
    """
    troubles: list[Trouble] = []
    document = read_document(path, troubles)
    root = StrictTable(document.table, (), troubles)
    policy = _read_policy(document, root, today or datetime.datetime.now(datetime.UTC).date())
    if troubles:
        raise PolicyError("\n".join(dict.fromkeys(describe(document, trouble) for trouble in troubles)))
    return policy


def _read_policy(document: Document, root: StrictTable, today: datetime.date) -> Policy:
    root.ignore("schema", "extends")
    rules = root.table("distributions")
    auto = root.table("auto")
    named = root.table("profiles")
    files = root.table("files")
    profiles = tuple(_read_profile(name, named.table(name)) for name in named.names())
    if not profiles:
        root.problem("profiles", "no profile is declared, at least one [profiles.NAME] must be")
    policy = Policy(
        path=document.path,
        unexpected=cast(Severity, rules.choice("unexpected", ("fail", "warn"), "warn")),
        allow=rules.strings("allow"),
        forbid=rules.strings("forbid"),
        watched=rules.strings("watched", DEFAULT_WATCHED),
        allow_unowned=files.strings("allow-unowned"),
        allow_overlap=files.strings("allow-overlap"),
        recorded=root.string("recorded"),
        source=root.strings("source"),
        waivers=tuple(_read_waiver(each, today) for each in root.tables("waivers")),
        auto_with_driver=auto.string("with-driver"),
        auto_without_driver=auto.string("without-driver"),
        profiles=profiles,
        places=document.places,
    )
    names = [profile.name for profile in profiles]
    for key in ("with-driver", "without-driver"):
        if (name := auto.string(key)) is not None and name not in names:
            auto.problem(key, f"got {name!r}, allowed is a declared profile: {', '.join(names)}")
    for table in (root, rules, auto, files):
        table.close()
    return policy


def _read_waiver(table: StrictTable, today: datetime.date) -> Waiver:
    from envguard.registry import WAIVABLE  # the checks read policies, so the registry imports this module

    waiver = Waiver(
        check=table.required("check"),
        match=table.required("match"),
        reason=table.required("reason"),
        owner=table.required("owner"),
        expires=table.date("expires") or today,
    )
    if waiver.check and waiver.check not in WAIVABLE:
        import difflib

        near = difflib.get_close_matches(waiver.check.upper(), WAIVABLE, n=1, cutoff=0.0)[0]
        table.problem("check", f"got {waiver.check!r}, allowed is the id of a check, nearest: {near}")
    last = today + datetime.timedelta(days=MAX_WAIVER_DAYS)
    if waiver.expires > last:
        allowed = f"allowed is a day at most {MAX_WAIVER_DAYS} days ahead, so {last} at the latest"
        table.problem("expires", f"got {waiver.expires}, {allowed}")
    table.close()
    return waiver


def _read_profile(name: str, table: StrictTable) -> Profile:
    python = table.required("python")
    driver = table.string("driver")
    for key, text in (("python", python), ("driver", driver)):
        if text and specifier_set(text) is None:
            table.problem(key, f"got {text!r}, allowed is a version specifier such as '>=3.11,<3.14'")
    pins = table.table("packages")
    packages = tuple((package, pins.required(package)) for package in sorted(pins.names()))
    _check_pins(pins, packages)
    variables = table.table("env")
    required = variables.table("require")
    profile = Profile(
        name=name,
        python=python,
        lock=table.string("lock", "uv.lock") or "",
        unlocked=table.string("unlocked"),
        torch=tuple(_read_torch(each) for each in table.tables("torch")),
        driver=driver,
        packages=packages,
        deny_variables=variables.strings("deny"),
        allow_variables=variables.strings("allow"),
        require_variables=tuple((variable, required.required(variable)) for variable in sorted(required.names())),
        jit=table.boolean("jit"),
    )
    variables.close()
    table.close()
    return profile


def _check_pins(table: StrictTable, packages: Sequence[tuple[str, str]]) -> None:
    first: dict[str, str] = {}
    for package, pin in packages:
        if pin and version(pin) is None:
            table.problem(package, f"got {pin!r}, allowed is one version such as '5.6.0'")
        if (other := first.setdefault(canonical(package), package)) != package:
            table.problem(package, f"is the same distribution as {other}: give one of the two")


def _read_torch(table: StrictTable) -> TorchRule:
    git_version = table.string("git-version")
    if git_version is not None and not re.fullmatch(r"[0-9a-f]{40}", git_version):
        table.problem("git-version", f"got {git_version!r}, allowed is a full commit of 40 hex digits")
    rule = TorchRule(version=table.required("version"), cuda=table.string("cuda"), git_version=git_version)
    table.close()
    return rule
