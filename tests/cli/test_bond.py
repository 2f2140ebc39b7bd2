"""`headrace bond`: a relayer's bond, as its own key changes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from eth_utils.address import to_checksum_address

from headrace.adapters.clock import SystemClock
from headrace.adapters.file_lock import alone_with
from headrace.adapters.sql.store import SqlStore
from headrace.core.types import Request
from tests.cli.ledger import RELAYER, STRANGER, Ledger
from tests.fakes import FakeChain, make_request
from tests.local_chain import ETHER

pytestmark = pytest.mark.slow

UNBOND_DELAY_S = 259_200


def test_show__own_or_anothers__says_how_it_stands(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        "relayer": ledger.account(RELAYER),
        "bond_wei": str(ETHER),
        "bonded": True,
        "withdrawable_at_s": None,
        "faults": 0,
    }
    assert ledger.json("bond", "show") == own
    monkeypatch.delenv("HEADRACE_RELAYER_PRIVATE_KEY")
    assert ledger.json("bond", "show", ledger.account(RELAYER)) == own
    assert "bonded       yes" in ledger.shown("bond", "show", ledger.account(RELAYER))
    assert "is no registered relayer" in ledger.refusal("bond", "show", ledger.account(STRANGER))
    assert "HEADRACE_RELAYER_PRIVATE_KEY" in ledger.refusal("bond", "show")


def test_add__registered__adds_up(ledger: Ledger) -> None:
    assert ledger.json("bond", "add", "0.5ether")["bond_wei"] == str(ETHER * 3 // 2)
    assert ledger.read("StakeManager", "relayerOf", _checksum(ledger))[0] == ETHER * 3 // 2
    assert "above 0" in ledger.refusal("bond", "add", "0")


def test_every_change__not_a_relayer__says_what_to_run(ledger: Ledger) -> None:
    ledger.sign_with(relayer=STRANGER)
    for arguments in (("add", "1ether"), ("unbond", "--force"), ("withdraw",)):
        assert "is not a registered relayer: run `ape run register_relayer`" in ledger.refusal("bond", *arguments)


def test_unbond__no_database__is_refused_unless_forced(ledger: Ledger) -> None:
    """The relayer may be at work with another."""
    assert "HEADRACE_RELAYER__DATABASE" in ledger.refusal("bond", "unbond")
    assert ledger.json("bond", "unbond", "--force")["withdrawable_at_s"] == ledger.now_s + UNBOND_DELAY_S


def test_unbond_and_withdraw__after_the_delay__pays_all_of_it(ledger: Ledger) -> None:
    keep(ledger)
    assert "begin that first" in ledger.refusal("bond", "withdraw")
    done = ledger.json("bond", "unbond")
    assert done["withdrawable_at_s"] == ledger.now_s + UNBOND_DELAY_S
    assert not ledger.read("StakeManager", "isBonded", _checksum(ledger))
    assert "no: it is unbonding, and may be withdrawn from 20" in ledger.shown("bond", "show")
    assert "the bond is unbonding already" in ledger.refusal("bond", "unbond").lower()
    ledger.jump(UNBOND_DELAY_S - 60)
    assert "wait" in ledger.refusal("bond", "withdraw")
    ledger.jump(60)
    before = ledger.balance_wei(RELAYER)
    assert ledger.json("bond", "withdraw")["withdrawn_wei"] == str(ETHER)
    assert ETHER - 10**16 < ledger.balance_wei(RELAYER) - before < ETHER
    assert "is no registered relayer" in ledger.refusal("bond", "show")


# WHILE IT WORKS


def keep(ledger: Ledger, *requests: Request) -> Path:
    """A relayer's database with these requests in it."""
    path = ledger.folder / "relayer.db"

    async def write() -> None:
        chain = FakeChain()
        store = await SqlStore.open(f"sqlite:///{path}", SystemClock())
        chain.mine(*(chain.requested(request) for request in requests))
        (block,) = await chain.blocks(1, 1)
        await store.add_blocks([block], await chain.events(1, 1), ledger.account(RELAYER))
        await store.close()

    ledger.anvil.wait(write())
    return path


def test_unbond__relayer_runs__is_refused(ledger: Ledger) -> None:
    path = keep(ledger, make_request(relayer=ledger.account(STRANGER)))
    with alone_with(path):
        assert "works with" in ledger.refusal("bond", "unbond")
    ledger.shown("bond", "unbond")


def test_unbond__requests_are_open__is_refused_unless_forced(ledger: Ledger) -> None:
    request = make_request(relayer=ledger.account(RELAYER))
    keep(ledger, request, make_request(relayer=ledger.account(STRANGER), salt=9))
    words = ledger.refusal("bond", "unbond")
    assert f"1 requests of this relayer are open, such as {FakeChain().id_of(request)}" in words
    assert ledger.json("bond", "unbond", "--force")["withdrawable_at_s"] == ledger.now_s + UNBOND_DELAY_S


def _checksum(ledger: Ledger) -> str:
    return to_checksum_address(ledger.account(RELAYER))
