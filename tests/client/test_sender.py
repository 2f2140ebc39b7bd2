"""Sending: simulated first, refused for nothing, and never blind to a lost answer."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from headrace.client import ChainSender
from headrace.core.errors import Refused, Unknown
from headrace.ports import Call, CallOutcome
from tests.fakes import GWEI, MARKET, FakeChain, FakeSigner

SIGNER = FakeSigner(2)
CALL = Call(MARKET, b"\x01\x02", value_wei=5)


class Chain(FakeChain):
    def __init__(self, outcome: CallOutcome | None = None) -> None:
        super().__init__()
        self.outcome = outcome or CallOutcome(True, 100_000, (), "")

    async def simulate(self, sender: str, calls: Any) -> list[CallOutcome]:
        return [self.outcome]


async def no_sleep(_seconds: float) -> None:
    return


async def test_send__well__is_signed_with_headroom_and_included() -> None:
    chain = Chain()
    sender = ChainSender(chain, SIGNER, sleep=no_sleep)
    transaction_hash = await sender.send(CALL)
    fields = TypedTransaction.from_bytes(HexBytes(chain.sent[0])).as_dict()
    assert fields["chainId"] == 31337
    assert (fields["nonce"], fields["value"], bytes(fields["data"])) == (0, 5, b"\x01\x02")
    assert (fields["gas"], fields["maxFeePerGas"]) == (150_000, 3 * GWEI)
    chain.mine()
    receipt = await sender.wait(transaction_hash, 1)
    assert receipt is not None
    assert receipt.succeeded


async def test_send__would_fail__is_refused_in_words() -> None:
    chain = Chain(CallOutcome(False, 0, (), "DeadlineOutOfRange(deadline=5, earliest=15, latest=99)"))
    with pytest.raises(Refused, match="deadline is 1970-01-01 00:00:05 UTC, and the market takes one from"):
        await ChainSender(chain, SIGNER, sleep=no_sleep).send(CALL)
    assert chain.sent == []


def nonces(chain: FakeChain) -> list[int]:
    return [int(TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["nonce"]) for raw in chain.sent]


@pytest.mark.parametrize("refusal", ["nonce too low", "replacement transaction underpriced"])
async def test_send__nonce_taken_by_another__is_sent_once_more_with_the_next(refusal: str) -> None:
    """Two programs send by one key: the other's transaction is mined while this one waits."""
    chain = Chain()
    other = ChainSender(chain, SIGNER, sleep=no_sleep)
    await other.send(Call(MARKET, b"\x03"))
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            chain.mine()

    chain.fail("send_raw", Refused(refusal))
    transaction_hash = await ChainSender(chain, SIGNER, sleep=wait).send(CALL)
    assert nonces(chain) == [0, 0, 1]
    assert len(waits) == 3
    chain.mine()
    receipt = await chain.receipt(transaction_hash)
    assert receipt is not None


async def test_send__nonce_stays_taken__is_a_sentence() -> None:
    chain = Chain()
    chain.fail("send_raw", Refused("replacement transaction underpriced"))
    with pytest.raises(Refused, match=r"is on its way and has the same nonce; nothing was sent"):
        await ChainSender(chain, SIGNER, sleep=no_sleep).send(CALL)
    assert len(chain.sent) == 1


async def test_send__refused_for_another_reason__is_told_as_it_is() -> None:
    chain = Chain()
    chain.fail("send_raw", Refused("intrinsic gas too low"))
    with pytest.raises(Refused, match="intrinsic gas too low"):
        await ChainSender(chain, SIGNER, sleep=no_sleep).send(CALL)
    assert len(chain.sent) == 1


async def test_send__cannot_pay__says_how_much_is_needed() -> None:
    chain = Chain()
    chain.balances[SIGNER.address] = 7
    with pytest.raises(Refused, match=f"has 7 wei and needs up to {5 + 150_000 * 3 * GWEI} wei for"):
        await ChainSender(chain, SIGNER, sleep=no_sleep).send(CALL)
    assert chain.sent == []


async def test_send__answer_lost__is_sent_again_not_twice() -> None:
    chain = Chain()
    chain.fail("send_raw", Unknown("lost"))
    sender = ChainSender(chain, SIGNER, sleep=no_sleep)
    transaction_hash = await sender.send(CALL)
    assert len(chain.sent) == 2
    assert chain.sent[0] == chain.sent[1]
    chain.mine()
    assert await sender.wait(transaction_hash, 1) is not None


async def test_wait__never_included__is_none() -> None:
    assert await ChainSender(Chain(), SIGNER, sleep=no_sleep).wait("0x" + "00" * 32, 1) is None
