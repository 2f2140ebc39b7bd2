"""The frame around every command: exit codes, one sentence, keys that stay secret, a stop that drains."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

import headrace
import headrace.bootstrap
import headrace.cli
from headrace.adapters.keystore import open_keystore
from headrace.cli.screens import with_checksums
from headrace.core.errors import ConfigurationError
from headrace.settings import Settings

KEY = "0x" + "7" * 64


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = headrace.cli.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version__is_shown_without_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_NONSENSE", "1")
    assert run(capsys, "--version") == (0, f"{headrace.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [("frobnicate",), ("request", "new", "x", "--ttl", "soon"), ("request", "audit"), ("key", "show", "king")],
)
def test_usage__wrong__exits_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert "Error:" in error


@pytest.mark.parametrize(
    "arguments",
    [("audit", "--what"), ("watch", "--from-round", "0"), ("--config", "x.toml", "audit", "--what"), ("--no", "watch")],
)
def test_usage__of_a_command_that_judges__is_no_verdict(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, _, error = run(capsys, *arguments)
    assert code == 64
    assert "Error:" in error


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *((("audit", "--rounds", rounds), 64) for rounds in ("x", "", "5..1", "a..b", "-1..2")),
        (("audit", "--relayer", "x"), 64),
        (("--config=absent.toml", "watch"), 3),
    ],
)
def test_command_that_judges__cannot__exits_with_no_verdict(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int
) -> None:
    got, out, error = run(capsys, *arguments)
    assert got == code
    assert (out, error.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("environment", "arguments", "words"),
    [
        ({"HEADRACE_CHAIN__RPC": "x"}, ("relayer",), "no setting chain.rpc"),
        ({"HEADRACE_CHAIM__RPC_URL": "x"}, ("key", "show", "node"), "did you mean HEADRACE_CHAIN?"),
        ({"HEADRACE_CONFIG": "absent.toml"}, ("node",), "absent.toml cannot be read"),
        ({}, ("relayer",), "HEADRACE_RELAYER_PRIVATE_KEY"),
        ({"HEADRACE_RELAYER_PRIVATE_KEY": "0x12"}, ("relayer",), "64 hexadecimal digits"),
        ({}, ("request", "new", "x"), "HEADRACE_REQUESTER_PRIVATE_KEY"),
        (
            {"HEADRACE_REQUESTER_PRIVATE_KEY": KEY, "HEADRACE_CHAIN__RPC_URL": "http://127.0.0.1:1"},
            ("request", "new", "x"),
            "127.0.0.1:1 cannot be reached: Connect call failed ('127.0.0.1', 1): check HEADRACE_CHAIN__RPC_URL and",
        ),
        ({"HEADRACE_REQUESTER__KEY__KEYSTORE": "no.json"}, ("request", "list"), "password"),
        (
            {"HEADRACE_REQUESTER__KEY__KEYSTORE": "no.json", "HEADRACE_KEYSTORE_PASSWORD": "x"},
            ("request", "list"),
            "The keystore no.json does not exist (HEADRACE_REQUESTER__KEY__KEYSTORE).",
        ),
        (
            {},
            ("key", "show", "requester"),
            "The requester has no key: set HEADRACE_REQUESTER__KEY__KEYSTORE to a keystore file, or HEADRACE",
        ),
        ({}, ("request", "show", "12"), "not a request id"),
        ({}, ("key", "new", "node.json"), "password is missing"),
        ({}, ("key", "show", "node"), "HEADRACE_NODE_PRIVATE_KEY"),
    ],
)
def test_operator_error__is_one_sentence_and_exit_1(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, _, error = run(capsys, *arguments)
    assert code == 1
    assert words in error
    assert error.count("\n") == 1
    assert error.rstrip().endswith((".", "`"))
    assert error == error[0].upper() + error[1:] or error.startswith("http")
    assert KEY not in error


def test_wrong_key__is_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUESTER_PRIVATE_KEY", "0xdeadbeef")
    code, out, error = run(capsys, "key", "show", "requester")
    assert code == 1
    assert "deadbeef" not in out + error


def test_fault_in_the_program__tells_no_trace_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_settings: Settings) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(headrace.cli, "make_session", broken)
    code, _, error = run(capsys, "key", "show", "node")
    assert code == 1
    assert "HEADRACE_DEBUG=1" in error
    assert "inside" not in error
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with pytest.raises(KeyError):
        headrace.cli.run(["key", "show", "node"])


def test_errors_of_a_group__the_one_on_purpose_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_relayer(_settings: Settings) -> None:
        raise ExceptionGroup("tasks", [OSError("x"), ExceptionGroup("inner", [ConfigurationError("set the port")])])

    monkeypatch.setattr(headrace.cli, "configure", lambda *_: None)
    monkeypatch.setattr(headrace.bootstrap, "run_relayer", run_relayer)
    code, _, error = run(capsys, "relayer")
    assert (code, error) == (1, "Set the port.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_service__stopped_by_a_signal__drains_and_exits_0(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    drained = []

    async def run_node(_settings: Settings) -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            drained.append(True)

    monkeypatch.setattr(headrace.cli, "configure", lambda *_: None)
    monkeypatch.setattr(headrace.bootstrap, "run_node", run_node)
    assert run(capsys, "node") == (0, "", "")
    assert drained == [True]


def test_key_new__keystore__opens_and_is_never_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "node.json"
    (tmp_path / "password").write_text("correct horse\n", encoding="utf-8")
    arguments = ("key", "new", str(path), "--password-file", str(tmp_path / "password"))
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert with_checksums(open_keystore(path, "correct horse").address) == out.strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    code, _, error = run(capsys, *arguments)
    assert code == 1
    assert "exists" in error
    assert path.read_bytes() == content
    monkeypatch.setenv("HEADRACE_NODE__KEY__KEYSTORE", str(path))
    monkeypatch.setenv("HEADRACE_KEYSTORE_PASSWORD", "correct horse")
    assert run(capsys, "key", "show", "node") == (0, out, "")


def test_key_new__file_exists__is_told_before_a_password_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: pytest.fail("a password was asked"))
    path = tmp_path / "node.json"
    path.write_text("precious", encoding="utf-8")
    code, _, error = run(capsys, "key", "new", str(path))
    assert code == 1
    assert error == f"The keystore {path} exists; it is not replaced: choose another name.\n"
    assert path.read_text(encoding="utf-8") == "precious"


def test_key_show__from_the_environment__shows_the_address_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RELAYER_PRIVATE_KEY", KEY)
    code, out, error = run(capsys, "key", "show", "relayer")
    assert code == 0
    assert len(out.strip()) == 42
    assert KEY not in out + error


@pytest.mark.parametrize("group", ["", "key", "request", "credit", "stake", "bond", "owner", "verifier"])
def test_help__terminal_of_80_columns__cuts_no_command_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, *([group] if group else []), "--help")
    assert code == 0
    commands = out.split("Commands:\n")[1].splitlines()
    assert len(commands) > 1
    assert [line for line in commands if "..." in line or len(line) > 80] == []
