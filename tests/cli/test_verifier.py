"""`headrace verifier`: a registrar vouches for keys, on anvil and the real contract."""

from __future__ import annotations

from decimal import Decimal

import pytest
from eth_utils.address import to_checksum_address

from tests.cli.ledger import CONTRACTS_OWNER, STRANGER, Ledger
from tests.fakes import FakeSigner

pytestmark = pytest.mark.slow

KEY = FakeSigner(33).address
DAY_S = 86_400


@pytest.fixture(autouse=True)
def registrar_signs(ledger: Ledger) -> None:
    ledger.sign_with(owner=CONTRACTS_OWNER)


def model_id(ledger: Ledger) -> str:
    return ledger.chain.deployment.models["tiny"]


def test_show__unknown_key__needs_no_key_and_says_that_nobody_vouches(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_OWNER_PRIVATE_KEY")
    shown = ledger.json("verifier", "show", KEY)
    assert shown == {
        "verifier": ledger.chain.deployment.address_of("AttestedKeyVerifier"),
        "key": KEY,
        "model_id": None,
        "model_name": None,
        "valid_until_s": None,
        "is_valid": False,
    }
    assert "vouched for  no" in ledger.shown("verifier", "show", KEY)


def test_attest__by_name__counts_until_its_time(ledger: Ledger) -> None:
    done = ledger.json("verifier", "attest", KEY, "--model", "tiny", "--days", "2")
    assert (done["model_id"], done["model_name"], done["is_valid"]) == (model_id(ledger), "tiny", True)
    assert ledger.now_s <= done["valid_until_s"] <= ledger.now_s + 2 * DAY_S
    found = ledger.read("AttestedKeyVerifier", "attestedOf", to_checksum_address(KEY))
    assert ("0x" + bytes(found[0]).hex(), found[1]) == (model_id(ledger), done["valid_until_s"])
    shown = ledger.shown("verifier", "show", KEY)
    assert "model        tiny" in shown
    assert "vouched for  until 20" in shown
    ledger.jump(2 * DAY_S + 60)
    assert ledger.json("verifier", "show", KEY)["is_valid"] is False
    assert "vouched for  no more, since 20" in ledger.shown("verifier", "show", KEY)


def test_attest__by_id_and_again__changes_how_long(ledger: Ledger) -> None:
    first = ledger.json("verifier", "attest", KEY, "--model", model_id(ledger), "--days", "1")
    second = ledger.json("verifier", "attest", KEY, "--model", "TINY", "--days", "10")
    assert second["valid_until_s"] > first["valid_until_s"] + 8 * DAY_S


def test_attest__unknown_model__names_those_that_there_are(ledger: Ledger) -> None:
    assert "there are: tiny" in ledger.refusal("verifier", "attest", KEY, "--model", "gpt-9")


def test_attest__not_the_registrar__is_refused(ledger: Ledger) -> None:
    ledger.sign_with(owner=STRANGER)
    assert "may not do this" in ledger.refusal("verifier", "attest", KEY, "--model", "tiny")


def test_revoke__ends_it_at_once(ledger: Ledger) -> None:
    ledger.json("verifier", "attest", KEY, "--model", "tiny")
    done = ledger.json("verifier", "revoke", KEY)
    assert (done["valid_until_s"], done["is_valid"]) == (None, False)
    assert ledger.json("verifier", "show", KEY)["is_valid"] is False
    assert "nothing is to be revoked" in ledger.refusal("verifier", "revoke", KEY)


def test_key__not_an_address__is_one_sentence(ledger: Ledger) -> None:
    assert "is not an address" in ledger.refusal("verifier", "show", "0x12")


def test_attest__default__is_thirty_days(ledger: Ledger) -> None:
    done = ledger.json("verifier", "attest", KEY, "--model", "tiny")
    days = Decimal(done["valid_until_s"] - ledger.now_s) / DAY_S
    assert Decimal("29.9") < days <= 30
