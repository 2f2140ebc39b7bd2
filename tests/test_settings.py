"""Settings: the environment over a file, and one clear sentence for each thing that can be wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.errors import ConfigurationError
from headrace.core.scheduling import Policy
from headrace.settings import load_settings

KEY = "0x" + "7" * 64


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_load_settings__nothing_set__has_local_defaults() -> None:
    settings = load_settings()
    assert settings.chain.rpc_url == "http://127.0.0.1:8545"
    assert settings.relayer.policy.policy() == Policy(name="balanced", lanes="shared")


def test_load_settings__variable_and_file__variable_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path / "h.toml", '[chain]\nrpc_url = "http://file:1"\nconfirmations = 4\n')
    monkeypatch.setenv("HEADRACE_CHAIN__RPC_URL", "http://environment:1")
    monkeypatch.setenv("HEADRACE_CONFIG", str(config))
    settings = load_settings()
    assert (settings.chain.rpc_url, settings.chain.confirmations) == ("http://environment:1", 4)


def test_load_settings__key_in_environment__is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RELAYER_PRIVATE_KEY", KEY)
    settings = load_settings()
    assert settings.relayer_private_key is not None
    assert settings.relayer_private_key.get_secret_value() == KEY
    assert KEY not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HEADRACE_CHAIM__RPC_URL", "http://x", ["HEADRACE_CHAIM__RPC_URL", "did you mean HEADRACE_CHAIN"]),
        ("HEADRACE_CHAIN__RPC", "http://x", ["chain.rpc", "rpc_url"]),
        ("HEADRACE_CHAIN__RPC_URL", "localhost", ["chain.rpc_url", "HEADRACE_CHAIN__RPC_URL"]),
        ("HEADRACE_RELAYER__API_PORT", "eighty", ["relayer.api_port", "HEADRACE_RELAYER__API_PORT"]),
        ("HEADRACE_RELAYER__API_PORT", "70000", ["relayer.api_port", "65535"]),
        ("HEADRACE_NODE__BACKEND", "magic", ["node.backend", "embedded"]),
        ("HEADRACE_NODE__MODELS", "[", ["JSON"]),
    ],
)
def test_load_settings__wrong_variable__names_it(
    variable: str, value: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as refusal:
        load_settings()
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[relayer]\napi_prot = 1\n", ["relayer.api_prot", "api_port"]),
        ("[relayer.batch]\nmax_results = 0\n", ["relayer.batch.max_results"]),
        ("colour = 1\n", ["colour"]),
        ("[relayer\n", ["not TOML"]),
    ],
)
def test_load_settings__wrong_file__names_setting_and_file(tmp_path: Path, text: str, words: list[str]) -> None:
    config = write(tmp_path / "h.toml", text)
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(config)
    assert all(word in str(refusal.value) for word in [*words, "h.toml"]), str(refusal.value)


def test_load_settings__no_such_file__says_where_it_was_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--config or HEADRACE_CONFIG"):
        load_settings(tmp_path / "absent.toml")


def test_load_settings__wrong_secret__is_not_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = write(tmp_path / "h.toml", f"relayer_private_key = {KEY}\n")
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(config)
    assert KEY not in str(refusal.value)
