"""Commands that need no relayer: keys, usage, and how errors look. The rest is tested over real processes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import headrace
from headrace.cli import run

PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DEBUG", "KEYSTORE_PASSWORD", "NODE_PRIVATE_KEY", "REQUESTER_PRIVATE_KEY"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == headrace.__version__


@pytest.mark.parametrize("arguments", [["nonsense"], ["request", "new", "--ttl", "soon"], ["key", "show", "king"]])
def test_usage__typed_wrongly__is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err


def test_key_new__writes_a_private_keystore_and_shows_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_KEYSTORE_PASSWORD", PASSWORD)
    path = tmp_path / "node.json"
    assert run(["key", "new", str(path)]) == 0
    address = capsys.readouterr().out.strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setenv("HEADRACE_NODE__KEY__KEYSTORE", str(path))
    assert run(["key", "show", "node"]) == 0
    assert capsys.readouterr().out.strip() == address


def test_key_new__file_exists__is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_KEYSTORE_PASSWORD", PASSWORD)
    path = tmp_path / "node.json"
    path.write_text("precious")
    assert run(["key", "new", str(path)]) == 1
    assert path.read_text() == "precious"
    assert "node.json" in capsys.readouterr().err.replace("\n", "")


def test_key_show__no_key__names_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "show", "requester"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "HEADRACE_REQUESTER_PRIVATE_KEY" in message
    assert "Traceback" not in message


def test_error__wrong_key__never_shows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HEADRACE_REQUESTER_PRIVATE_KEY", "0xdeadbeef")
    assert run(["key", "show", "requester"]) == 1
    captured = capsys.readouterr()
    assert "deadbeef" not in captured.out + captured.err


def test_error__unknown_setting__names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HEADRACE_CHAIM__RPC_URL", "http://127.0.0.1:1")
    assert run(["key", "show", "requester"]) == 1
    assert "HEADRACE_CHAIN" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize("rounds", ["", "5..1", "a..b", "-1..2"])
def test_audit__rounds_that_are_none__is_one_sentence(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--rounds", rounds]) == 1
    assert "Traceback" not in capsys.readouterr().err
