"""The fake chain behaves like a chain: what is sent is mined once, and what a reorg takes away is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import ChainUnavailable, Refused, Unknown
from headrace.core.types import ZERO_HASH, Result, RoundRecord, Status
from headrace.ports import Call, ResultSetCall
from tests.fakes import GWEI, NODE, FakeChain, FakeSigner, make_request

RECORD = RoundRecord(1, ZERO_HASH, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, 1, 0, 0)


def sign(signer: FakeSigner, call: Call, nonce: int, tip_wei: int = GWEI) -> tuple[bytes, str]:
    return signer.transaction(
        {
            "chainId": 31337,
            "nonce": nonce,
            "to": call.to,
            "data": call.data,
            "value": 0,
            "gas": 100_000,
            "maxFeePerGas": 10 * GWEI,
            "maxPriorityFeePerGas": tip_wei,
            "type": 2,
        }
    )


async def test_record_and_batch__in_order__settle_the_request() -> None:
    chain, signer, request = FakeChain(), FakeSigner(1), make_request()
    chain.bonded.add(signer.address)
    request = replace(request, relayer=signer.address)
    id_ = chain.id_of(request)
    chain.mine(chain.requested(request))
    result = Result(id_, "0x" + "77" * 32, 10, signer.address, 1)
    record = chain.record_round_call(signer.address, RECORD)
    batch = chain.submit_results_call(signer.address, [ResultSetCall(1, (NODE,), (b"s",), ((request, result),), ())])

    alone = await chain.simulate(signer.address, [batch])
    together = await chain.simulate(signer.address, [record, batch])
    assert alone[0].events[-1].args["statuses"] == "0x09"
    assert together[1].events[-1].args["statuses"] == "0x00"

    for nonce, call in enumerate([record, batch]):
        raw, hash_ = sign(signer, call, nonce)
        await chain.send_raw(raw)
    assert await chain.receipt(hash_) is None
    chain.mine()
    receipt = await chain.receipt(hash_)
    assert receipt is not None and receipt.succeeded
    assert await chain.statuses([id_]) == [Status.FULFILLED]
    assert await chain.transaction_count(signer.address) == 2
    assert await chain.next_round(signer.address) == 2
    chain.reorg(1)
    assert await chain.statuses([id_]) == [Status.PENDING]
    assert await chain.receipt(hash_) is None
    assert await chain.transaction_count(signer.address) == 0


async def test_send_raw__replacement__follows_the_rule_of_geth() -> None:
    chain, signer = FakeChain(), FakeSigner(1)
    call = Call("0x" + "99" * 20, b"")
    await chain.send_raw(sign(signer, call, 0, GWEI)[0])
    with pytest.raises(Refused, match="underpriced"):
        await chain.send_raw(sign(signer, call, 0, GWEI + 1)[0])
    raw, hash_ = sign(signer, call, 0, 2 * GWEI)
    chain.fail("send_raw", Unknown("the answer was lost"))
    with pytest.raises(Unknown):
        await chain.send_raw(raw)
    chain.mine()
    assert await chain.receipt(hash_) is not None
    await chain.send_raw(raw)
    with pytest.raises(Refused, match="nonce too low"):
        await chain.send_raw(sign(signer, call, 0, 5 * GWEI)[0])


async def test_reorg__same_depth__changes_hashes_only() -> None:
    chain = FakeChain()
    chain.mine_many(3)
    before = [await chain.block(number) for number in range(4)]
    chain.reorg(2)
    after = [await chain.block(number) for number in range(4)]
    assert before[:2] == after[:2]
    assert before[2] != after[2] and before[3] != after[3]
    chain.fail("head", ChainUnavailable("down"))
    with pytest.raises(ChainUnavailable):
        await chain.head()
    chain.lag = 2
    assert (await chain.head()).number == 1
    assert await chain.block(2) is None
