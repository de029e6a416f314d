"""What must not leave the machine is found, named, and never shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_tools.errors import SecretsError
from cache_tools.kinds import Kind
from cache_tools.secrets import SHAPES, VARIABLE, Policy, Scanner, lines
from cache_tools.snapshot import snapshot
from cache_tools.store import Store

from . import helpers
from .conftest import PROGRAM
from .test_cli import Cli

HERE = helpers.fingerprint()
GRAPH = "fxgraph/ab/fkey/entry"


def found(data: bytes, environ: dict[str, str] | None = None, path: str = GRAPH) -> set[tuple[str, str | None]]:
    scanner = Scanner(Policy.WARN, environ or {}, home=Path("/home/somebody"))
    scanner.look(path, Kind.FXGRAPH, data)
    assert all(one.path == path for one in scanner.findings)
    return {(one.kind, one.variable) for one in scanner.findings}


def dump(*variables: tuple[str, str]) -> bytes:
    """An environment dump as torch writes it, inside binary."""
    text = "\n".join(f"os.environ['{name}'] = '{value}'" for name, value in variables)
    return b"\x80\x05\x95\xff\x00" + f"import os\n{text}\n    ".encode() + b"\x00\xfe\x94"


# Put together here, so that no scanner of this repository takes them for real ones.
EXAMPLES = {
    "AWS access key": "AKIA" + "IOSFODNN7EXAMPLE",
    "Hugging Face token": "hf_" + "aB3" * 12,
    "GitHub token": "ghp_" + "a1B2" * 9,
    "GitLab token": "glpat-" + "x_1" * 7,
    "Slack token": "xoxb-" + "1234567890-" * 2 + "abc",
    "Google API key": "AIza" + "Sy_-0" * 7,
    "model provider key": "sk-" + "proj-" + "aB3_" * 10,
    "private key": "-----BEGIN " + "OPENSSH PRIVATE KEY-----",
    "JSON web token": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0In0." + "a-b_c" * 6,
    "URL with a password": "redis" + "://:s3cr3tpw@" + "host:1/0",
}


def test_every_shape_has_an_example() -> None:
    assert EXAMPLES.keys() == SHAPES.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_known_shapes_are_found_anywhere(kind: str) -> None:
    secret = EXAMPLES[kind]
    for around in (b"\x00%s\x00", b"x = '%s'\n", b'{"a": "%s"}', b"\xff\xfe%s\xff", b"word %s"):
        assert found(around % secret.encode()) == {(kind, None)}, around
    assert found(dump(("TORCH_SOMETHING", secret))) == {(kind, "TORCH_SOMETHING")}
    assert found(b"", {"X": secret}) == set()


OTHER_BEGINNINGS = {
    "AWS access key": ["ASIA" + "IOSFODNN7EXAMPLE"],
    "GitHub token": [
        *(f"gh{letter}_" + "a1B2" * 9 for letter in "ousr"),
        "github_" + "pat_" + "a1B2_" * 9,
    ],
    "Slack token": [f"xox{letter}-" + "1234567890-" * 2 for letter in "aeprs"],
    "model provider key": [f"sk-{who}-" + "aB3_" * 10 for who in ("ant", "svcacct")],
    "private key": ["-----BEGIN " + "PRIVATE KEY-----"],
}


@pytest.mark.parametrize(("kind", "secret"), [(k, s) for k, some in OTHER_BEGINNINGS.items() for s in some])
def test_every_beginning_of_a_shape_is_found(kind: str, secret: str) -> None:
    assert found(f"some\ntext {secret} and\nmore".encode()) == {(kind, None)}


def test_every_line_is_looked_at() -> None:
    lines_ = [f"{secret} {secret}\nhttp://plain\n" for secret in EXAMPLES.values()]
    assert found("".join(lines_).encode()) == {(kind, None) for kind in EXAMPLES}


@pytest.mark.parametrize(
    "variable",
    ["MY_TORCH_TOKEN", "TORCH_SECRET", "TRITON_DB_PASSWORD", "INDUCTOR_API_KEY", "torch_auth_token", "TORCHTOKEN"],
)
def test_dumped_variables_are_judged_by_their_name(variable: str) -> None:
    assert found(dump(("TORCH_A", "1"), (variable, "hunter2"), ("TORCH_B", "x"))) == {(VARIABLE, variable)}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCH_COMPILE_CACHE_KEY_TAG", "experiment-7"),
        ("TORCHINDUCTOR_CACHE_DIR", "/home/somebody/cache"),
        ("TORCH_TOKEN_FILE", "/run/secrets/token"),
        ("TORCH_USE_TOKEN", "1"),
        ("TORCH_TOKENIZERS", "fast-and-good"),
        ("TORCH_HOME", "/home/someone/.cache/torch"),
        ("TORCHINDUCTOR_REDIS_URL", "redis://host:6379/0"),
        ("TORCH_LOGS", "+dynamo,+inductor"),
        ("TRITON_KEYS", "many-of-them"),
    ],
)
def test_harmless_variables_are_not(variable: str, value: str) -> None:
    assert found(dump((variable, value))) == set()


def test_the_values_of_this_environment_are_looked_for() -> None:
    environ = {
        "WANDB_API_KEY": "0123456789abcdef" * 2,
        "PASSWORD": "short",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google.json",
        "EDITOR": "something-long",
        "DATABASE": "postgres" + "://me:pw@" + "db/x",
        "ODD_TOKEN": "a.b*c(d)[e]\\f",
    }
    everything = "\n".join(environ.values()).encode()
    assert found(everything, environ) == {(VARIABLE, "WANDB_API_KEY"), (VARIABLE, "DATABASE"), (VARIABLE, "ODD_TOKEN")}
    hidden = dump(("TORCH_ARGS", "--key=0123456789abcdef0123456789abcdef"))
    assert found(hidden, environ) == {(VARIABLE, "WANDB_API_KEY")}


@pytest.mark.parametrize(
    "text",
    [
        "https://pytorch.org/docs?x=a:b and someone@example.com",
        "http://localhost:8080/path@2x.png",
        "task-" + "proj-" + "a" * 40,
        "half_" + "a" * 40,
        "tensor: f32[64, 128] = torch.ops.aten.sum(hf_config)",
        "AKIA is a word",
        "c" + "a" * 51,
        "-----BEGIN PUBLIC KEY-----",
    ],
)
def test_ordinary_text_is_no_secret(text: str) -> None:
    assert found(text.encode()) == set()


def test_machine_code_is_not_looked_at_and_all_text_is() -> None:
    secret = EXAMPLES["AWS access key"].encode()
    scanner = Scanner(Policy.WARN, {})
    looked = {
        "ab/ca.py": Kind.SOURCE,
        "ab/cb.cpp": Kind.SOURCE,
        "ab/x.best_config": Kind.AUTOTUNE,
        "cache/x": Kind.GEMM,
        "dynamo/code_state_x.pkl": Kind.PGO,
        "aotautograd/a/b": Kind.AOTAUTOGRAD,
        "triton/0/H/__grp__k.json": Kind.TRITON,
        "odd/thing": Kind.UNKNOWN,
    }
    for path, kind in {**looked, "ab/c.so": Kind.NATIVE, "triton/0/H/k.cubin": Kind.TRITON}.items():
        scanner.look(path, kind, secret)
    assert {one.path for one in scanner.findings} == set(looked)


@pytest.mark.parametrize("at", [0, 1, 5, 19])
def test_a_large_file_is_looked_at_in_pieces(at: int) -> None:
    """A secret that lies across two pieces is found, and the pieces come out as they went in."""
    secret = EXAMPLES["AWS access key"].encode()
    pieces = [b"x" * 9000 + b" " + secret[:at], secret[at:] + b" " + b"y" * 9000, b"", b"z"]
    scanner = Scanner(Policy.WARN, {})
    assert list(scanner.through(GRAPH, Kind.FXGRAPH, iter(pieces))) == pieces
    assert [one.kind for one in scanner.findings] == ["AWS access key"]


def test_home_is_told_but_is_no_finding() -> None:
    scanner = Scanner(Policy.FAIL, {}, home=Path("/home/somebody"))
    scanner.look(GRAPH, Kind.FXGRAPH, b"File /home/somebody/model.py")
    scanner.look("other", Kind.UNKNOWN, b"File /home/somebodyelse/model.py")
    assert (scanner.home_paths, scanner.findings) == (1, ())


def test_findings_are_counted_once_sorted_and_bounded() -> None:
    scanner = Scanner(Policy.WARN, {})
    for index in (2, 1, *range(3, 15)):
        scanner.look(f"f{index:02}", Kind.UNKNOWN, EXAMPLES["GitHub token"].encode() + b" ")
        scanner.look(f"f{index:02}", Kind.UNKNOWN, EXAMPLES["GitHub token"].encode() + b"\n")
    assert len(scanner.findings) == 14
    assert lines(scanner.findings)[0] == "f01 holds a GitHub token"
    assert lines(scanner.findings)[-1] == "and 4 more"


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    """A cache with a secret in a graph entry, which hashes to its name as torch's would."""
    cache = tmp_path / "cache"
    helpers.make_cache(cache)
    entry = dump(("MY_TORCH_TOKEN", "hunter2secret"))
    helpers.write(cache, f"fxgraph/ab/fabkey/{helpers.b32(entry)}", entry)
    return cache


def test_refusing_leaves_no_snapshot(store: Store, leaky: Path) -> None:
    with pytest.raises(SecretsError, match=r"fxgraph/ab/fabkey/\w+ holds a value of .* \(MY_TORCH_TOKEN\)") as caught:
        snapshot(store, leaky, name="run", fingerprint=HERE, scanner=Scanner(Policy.FAIL, {}))
    assert "hunter2secret" not in str(caught.value)
    assert (store.names(), store.ids()) == ((), ())


def test_refusing_looks_at_what_an_earlier_snapshot_stored(store: Store, leaky: Path) -> None:
    warned = Scanner(Policy.WARN, {})
    first = snapshot(store, leaky, name="run", fingerprint=HERE, scanner=warned)
    assert len(warned.findings) == 1
    with pytest.raises(SecretsError, match="MY_TORCH_TOKEN"):
        snapshot(store, leaky, name="run", fingerprint=HERE, scanner=Scanner(Policy.FAIL, {}))
    unread = Scanner(Policy.FAIL, {})  # as if nothing had been read again
    with pytest.raises(SecretsError, match="MY_TORCH_TOKEN"):
        unread.conclude(store, store.read_manifest(first.id).entries)


def test_the_commands(tmp_path: Path, leaky: Path) -> None:
    cli = Cli(tmp_path)
    environ = {"DFLASH_CACHE_TRUST": str(tmp_path / "trust")}
    cli.run("keygen", **environ)
    refused = cli.run("snapshot", "--name", "run", "--sign", rc=1, **environ)
    assert all(line.startswith("error: ") for line in refused.stderr.splitlines())
    assert "(MY_TORCH_TOKEN)" in refused.stderr
    assert cli.json("list", **environ)["snapshots"] == []
    assert "MY_TORCH_TOKEN" in cli.run("snapshot", "--name", "run", "--secrets", "fail", rc=1, **environ).stderr
    kept = cli.run("snapshot", "--name", "run", **environ)
    assert "warning: fxgraph/" in kept.stderr
    assert "do not share it" in kept.stderr
    assert "MY_TORCH_TOKEN" in cli.run("sign", "run", rc=1, **environ).stderr
    assert cli.json("list", **environ)["snapshots"][0]["trust"] == "own"
    signed = cli.run("sign", "run", "--secrets", "warn", "--json", **environ)
    assert json.loads(signed.stdout)["secrets"][0]["variable"] == "MY_TORCH_TOKEN"
    for done in (refused, kept, signed):
        assert "hunter2secret" not in done.stdout + done.stderr


@pytest.mark.slow
def test_what_torch_itself_writes_is_found(store: Store, tmp_path: Path) -> None:
    """torch copies variables of its environment into graph entries; the dump's form is torch's, not ours."""
    cache, secret = tmp_path / "inductor", "hunter2" + "secret"
    environ = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "MY_TORCH_TOKEN": secret,
        "TORCHINDUCTOR_REDIS_URL": EXAMPLES["URL with a password"],
    }
    subprocess.run([sys.executable, PROGRAM], env=environ, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    scanner = Scanner(Policy.WARN, {}, home=tmp_path)
    taken = snapshot(store, cache, name="run", fingerprint=HERE, scanner=scanner)
    graphs = [entry.path for entry in store.read_manifest(taken.id).entries if entry.kind is Kind.FXGRAPH]
    assert graphs
    assert {(one.path, one.kind, one.variable) for one in scanner.findings} == {
        finding
        for path in graphs
        for finding in (
            (path, VARIABLE, "MY_TORCH_TOKEN"),
            (path, "URL with a password", "TORCHINDUCTOR_REDIS_URL"),
        )
    }
    assert scanner.home_paths >= len(graphs)
    assert secret not in "\n".join(lines(scanner.findings))


@pytest.mark.parametrize("value", ["a" * 100_000, "s3cr3t-" * 15_000], ids=["one letter", "a word"])
def test_a_huge_value_costs_no_time_and_is_found_across_two_pieces(value: str) -> None:
    code = (
        "import sys; from cache_tools.secrets import Policy, Scanner; from cache_tools.kinds import Kind\n"
        "import os; secret = os.environ['MY_TOKEN'].encode()\n"
        "scanner = Scanner(Policy.WARN)\n"
        "pieces = [b'x' * 9000 + b' ' + secret[:50_000], secret[50_000:] + b'y' * 9000]\n"
        "list(scanner.through('odd/x', Kind.UNKNOWN, iter(pieces)))\n"
        "print({one.variable for one in scanner.findings})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"MY_TOKEN": value}, capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("{'MY_TOKEN'}\n", "")


def test_a_home_that_is_no_text_or_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/\udcff")
    scanner = Scanner(Policy.WARN, {})
    scanner.look(GRAPH, Kind.FXGRAPH, b"File /home/\xff/model.py")
    assert scanner.home_paths == 1
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a container that runs as a number
    Scanner(Policy.WARN, {}).look(GRAPH, Kind.FXGRAPH, b"File ~/model.py")
