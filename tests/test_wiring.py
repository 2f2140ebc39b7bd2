"""Which key a role has, by its settings: exactly one of a keystore, a variable and a remote signer."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.adapters.keystore import LocalSigner
from headrace.adapters.web3signer import Web3Signer
from headrace.core.errors import ConfigurationError, SignerUnavailable
from headrace.settings import load_settings
from headrace.wiring import open_payer, open_signer, open_submitter, reached
from tests.fakes import FakeMetrics
from tests.web3signer import web3signer

KEY = b"\x4c" * 32
ADDRESS = LocalSigner(KEY).address
RELAYER, SUBMITTER, NODE = "HEADRACE_RELAYER__KEY__", "HEADRACE_RELAYER__SUBMITTER__", "HEADRACE_NODE__KEY__"


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for prefix in (RELAYER, SUBMITTER, NODE, "HEADRACE_NODE__PAYER__"):
        monkeypatch.setenv(prefix + "SIGNER_URL", "https://me:hushhush@signer.example:9000")
        monkeypatch.setenv(prefix + "SIGNER_ADDRESS", ADDRESS.upper().replace("0X", "0x"))
    return monkeypatch


def test_each_of_a_daemons_keys_may_be_remote(env: pytest.MonkeyPatch) -> None:
    settings = load_settings()
    for opened in (
        open_signer(settings, "relayer"),
        open_signer(settings, "node"),
        open_submitter(settings),
        open_payer(settings),
    ):
        assert isinstance(opened, Web3Signer)
        assert opened.address == ADDRESS
        assert "signer.example:9000" in repr(opened) and "hushhush" not in repr(opened) + repr(settings)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (RELAYER + "KEYSTORE", "key.json", f"both {RELAYER}SIGNER_URL and {RELAYER}KEYSTORE: drop one"),
        ("HEADRACE_RELAYER_PRIVATE_KEY", "0x" + KEY.hex(), "both .*SIGNER_URL and HEADRACE_RELAYER_PRIVATE_KEY"),
        (RELAYER + "SIGNER_ADDRESS", "", f"{RELAYER}SIGNER_URL needs {RELAYER}SIGNER_ADDRESS"),
        (RELAYER + "SIGNER_URL", "", f"{RELAYER}SIGNER_ADDRESS is of no use without"),
        (RELAYER + "SIGNER_URL", "http://signer:9000", "begins with http://, so its certificates"),
    ],
)
def test_what_does_not_fit_together_is_said(env: pytest.MonkeyPatch, variable: str, value: str, says: str) -> None:
    if value:
        env.setenv(variable, value)
    else:
        env.delenv(variable)
    if value.startswith("http:"):
        env.setenv(RELAYER + "SIGNER_CA_FILE", "ca.pem")
    with pytest.raises(ConfigurationError, match=says):
        open_signer(load_settings(), "relayer")


def test_a_url_that_is_none_is_refused_and_not_shown(env: pytest.MonkeyPatch) -> None:
    env.setenv(NODE + "SIGNER_URL", "ftp://me:hushhush@signer")
    with pytest.raises(ConfigurationError, match=r"node\.key\.signer_url is wrong") as caught:
        load_settings()
    assert "hushhush" not in str(caught.value)


def test_a_person_at_the_command_line_has_no_remote_key(env: pytest.MonkeyPatch) -> None:
    env.setenv("HEADRACE_OWNER__KEY__SIGNER_URL", "https://signer")
    with pytest.raises(ConfigurationError, match=r"no setting owner\.key\.signer_url"):
        load_settings()


async def test_reached__signer_is_there__counts_and_closes(env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metrics = FakeMetrics()
    async with web3signer(KEY) as stand_in:
        env.setenv(RELAYER + "SIGNER_URL", stand_in.url)
        signer = open_signer(load_settings(), "relayer")
        async with reached(signer, None, LocalSigner(KEY), metrics=metrics):
            await signer.sign_transaction(
                {
                    "type": 2,
                    "chainId": 31337,
                    "nonce": 0,
                    "to": ADDRESS,
                    "value": 0,
                    "data": b"",
                    "gas": 21_000,
                    "maxFeePerGas": 2,
                    "maxPriorityFeePerGas": 1,
                }
            )
        assert metrics.total("headrace_signer_calls_total") == 1
        await stand_in.stop()
        with pytest.raises(SignerUnavailable):
            async with reached(signer):
                raise AssertionError
