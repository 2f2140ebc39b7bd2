"""Keys that the settings name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from eth_account import Account

from headrace.core.errors import ConfigurationError
from headrace.settings import load_settings
from headrace.wiring import open_further_submitters

PASSWORD = "correct horse"
RELAYER, SUBMITTER, OTHER = (bytes(31) + bytes([number]) for number in (1, 2, 3))


def keystore(folder: Path, key: bytes) -> dict[str, str]:
    """The settings of a keystore of a key."""
    file, password = folder / f"{key.hex()}.json", folder / "password"
    password.write_text(PASSWORD)
    file.write_text(json.dumps(Account.encrypt(key, PASSWORD, kdf="scrypt", iterations=2)))
    for each in (file, password):
        each.chmod(0o600)
    return {"keystore": str(file), "password_file": str(password)}


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RELAYER_PRIVATE_KEY", "0x" + RELAYER.hex())
    monkeypatch.setenv("HEADRACE_RELAYER_SUBMITTER_PRIVATE_KEY", "0x" + SUBMITTER.hex())


def further(monkeypatch: pytest.MonkeyPatch, *sections: dict[str, str]) -> list[str]:
    """The addresses of further submitters."""
    monkeypatch.setenv("HEADRACE_RELAYER__FURTHER_SUBMITTERS", json.dumps(sections))
    return [signer.address for signer in open_further_submitters(load_settings())]


@pytest.mark.usefixtures("_keys")
def test_further_submitters__each_has_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(Account.from_key(OTHER).address).lower()
    assert further(monkeypatch) == []
    assert further(monkeypatch, keystore(tmp_path, OTHER)) == [address]
    for same in (RELAYER, SUBMITTER):
        with pytest.raises(ConfigurationError, match="at place 1, which is another submitter or the relayer itself"):
            further(monkeypatch, keystore(tmp_path, OTHER), keystore(tmp_path, same))
    with pytest.raises(ConfigurationError, match="at place 1"):
        further(monkeypatch, keystore(tmp_path, OTHER), keystore(tmp_path, OTHER))
    with pytest.raises(ConfigurationError, match="names no key at place 0"):
        further(monkeypatch, {})


@pytest.mark.usefixtures("_keys")
def test_further_submitters__without_a_first__are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_RELAYER_SUBMITTER_PRIVATE_KEY")
    with pytest.raises(ConfigurationError, match="are beside a submitter"):
        further(monkeypatch, keystore(tmp_path, OTHER))
