"""`headrace credit` and `headrace request raise`: what is sent, and what is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_account import Account

import headrace.cli
from headrace import wiring
from headrace.cli.screens import with_checksums
from headrace.core.calls import deposit_data, raise_priority_fee_data, withdraw_data, withdraw_to_data
from headrace.ports import CallOutcome
from tests.api.world import REQUESTER_SIGNER
from tests.cli.conftest import Desk

OWN = REQUESTER_SIGNER.address
OTHER = "0x" + "c5" * 20
OWNERS_KEY = "0x" + "0e" * 32
ID = "0x" + "aa" * 32


def refuse(desk: Desk, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """Have the market revert with this error."""

    async def simulate(*_: object) -> list[CallOutcome]:
        return [CallOutcome(False, 0, (), error)]

    monkeypatch.setattr(desk.relayer.chain, "simulate", simulate)


def test_show__own_or_anothers__needs_the_chain_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUESTER__API_URL", "http://127.0.0.1:1")
    desk.relayer.chain.credits.update({OWN: 10**15, OTHER: 7})
    assert desk.run("credit", "show") == 0, desk.error
    assert "0.001 ether (1,000,000,000,000,000 wei)" in desk.out
    assert with_checksums(OWN) in desk.out
    assert desk.json("credit", "show", "--account", OTHER) == {"account": OTHER, "credit_wei": "7"}


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        ((), withdraw_data(OWN, 10**15)),
        (("20gwei",), withdraw_data(OWN, 20 * 10**9)),
        (("5", "--to", OTHER), withdraw_to_data(OTHER, 5)),
        (("5", "--account", OTHER), withdraw_data(OTHER, 5)),
        (("--account", OTHER), withdraw_data(OTHER, 7)),
    ],
)
def test_withdraw__sends_what_was_asked(desk: Desk, arguments: tuple[str, ...], data: bytes) -> None:
    desk.relayer.chain.credits.update({OWN: 10**15, OTHER: 7})
    assert desk.run("credit", "withdraw", *arguments) == 0, desk.error
    assert data in desk.relayer.chain.sent[-1]
    assert "changed in   0x" in desk.out


def test_withdraw__owners_key__pays_the_owners_credit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Account.from_key(OWNERS_KEY).address.lower()
    monkeypatch.setenv("HEADRACE_OWNER_PRIVATE_KEY", OWNERS_KEY)
    real = headrace.cli.make_session
    monkeypatch.setattr(
        headrace.cli, "make_session", lambda settings: replace(real(settings), open_signer=wiring.open_signer)
    )
    desk.relayer.chain.credits.update({OWN: 10**15, owner: 7})
    assert desk.run("credit", "withdraw", "--key", "owner") == 0, desk.error
    raw = desk.relayer.chain.sent[-1]
    assert withdraw_data(owner, 7) in raw
    assert Account.recover_transaction(raw).lower() == owner


def test_withdraw__of_an_account_that_can_call__says_whose_key_is_wanted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.relayer.chain.credits[OTHER] = 7
    refuse(desk, monkeypatch, f"NotAccount(caller={OWN}, account={OTHER})")
    refusal = desk.refusal("credit", "withdraw", "--account", OTHER)
    assert with_checksums(f"Only {OTHER} itself can have its credit paid out") in refusal
    assert "--key" in refusal


def test_withdraw__nothing_there__is_refused(desk: Desk) -> None:
    assert with_checksums(f"nothing to withdraw: the account {OWN} has no credit.") in desk.refusal(
        "credit", "withdraw"
    )
    assert desk.relayer.chain.sent == []


def test_withdraw_and_deposit__zero__is_no_amount(desk: Desk) -> None:
    desk.relayer.chain.credits[OWN] = 10**15
    for command in ("withdraw", "deposit"):
        assert "AMOUNT is 0, which moves nothing: give more." in desk.refusal("credit", command, "0ether")


def test_withdraw__no_ether_for_gas__says_what_credit_pays_for(desk: Desk) -> None:
    desk.relayer.chain.credits[OWN] = 10**15
    desk.relayer.chain.balances[OWN] = 0
    refusal = desk.refusal("credit", "withdraw")
    assert "has 0 wei and needs up to 0.00" in refusal
    assert "send it some for gas, from any account; its credit pays for no gas but that of" in refusal
    assert "--max-reward" not in refusal


def test_deposit__more_than_there_is__says_to_deposit_less(desk: Desk) -> None:
    refusal = desk.refusal("credit", "deposit", "1000000ether")
    assert "deposit less, or send it some" in refusal
    assert "--max-reward" not in refusal


def test_withdraw__to_and_account__is_refused(desk: Desk) -> None:
    assert "either --to or --account" in desk.refusal("credit", "withdraw", "--to", OTHER, "--account", OTHER)
    assert "is not an address" in desk.refusal("credit", "withdraw", "--to", "0x12")
    nobody = "0x" + "0" * 40
    assert "what is sent there is lost" in desk.refusal("credit", "withdraw", "--to", nobody)
    assert "what is sent there is lost" in desk.refusal("credit", "deposit", "1gwei", "--account", nobody)


def test_deposit__own_or_anothers__brings_the_wei(desk: Desk) -> None:
    assert desk.run("credit", "deposit", "20gwei") == 0, desk.error
    document = desk.json("credit", "deposit", "5", "--account", OTHER)
    assert document["account"] == OTHER
    first, second = desk.relayer.chain.sent
    assert deposit_data(OWN) in first
    assert deposit_data(OTHER) in second
    assert "AMOUNT is 'much'" in desk.refusal("credit", "deposit", "much")


def test_raise__sends_the_fee(desk: Desk) -> None:
    assert desk.run("request", "raise", ID, "--priority-fee", "20gwei") == 0, desk.error
    assert "20,000,000,000 wei" in desk.out
    assert desk.json("request", "raise", ID, "--priority-fee", "5")["added_wei"] == "5"
    assert all(raise_priority_fee_data(ID) in raw for raw in desk.relayer.chain.sent)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (f"NotPending(requestId={ID}, status=4)", f"request {ID} is not open: the market says that it is fulfilled."),
        (
            "DeadlinePassed(deadline=1750000000, blockTimestamp=1750000009)",
            "deadline passed at 2025-06-15 15:06:40 UTC",
        ),
        ("NothingSent()", "give an amount above 0."),
    ],
)
def test_raise__market_refuses__says_why(desk: Desk, monkeypatch: pytest.MonkeyPatch, error: str, words: str) -> None:
    refuse(desk, monkeypatch, error)
    assert words in desk.refusal("request", "raise", ID, "--priority-fee", "5")
    assert desk.relayer.chain.sent == []
