"""F25: a batch was simulated on a state that is another when it is mined: an item is served already, the contract
fails, the gas is not enough, blocks are smaller. What can be paid is paid once, the rest is drafted anew, never paid
twice."""

from __future__ import annotations

import pytest

from headrace.adapters.web3_chain import Web3Chain
from headrace.core.errors import Refused
from headrace.services.sender import Draft, Sender
from tests.chaos.bench import Bench

REVERTS = "0x60006000fd"


async def outcome(bench: Bench, index: int) -> str:
    intent = await bench.store.intent_of_transaction(bench.sent[index].hash)
    assert intent is not None
    return intent.state


async def test_batch__an_item_is_served_meanwhile__the_others_are_paid(bench: Bench) -> None:
    ids = await bench.serve(2)
    await bench.services.settler.step()
    batch = bench.sent[1]
    await bench.rpc("anvil_dropTransaction", batch.hash)
    await bench.mine()
    other = await bench.by_another(2, bench.results_by_another(2, ids[:1]))
    await bench.mine()
    await bench.send(batch.raw)
    await bench.mine()
    first, second = await bench.chain.receipt(other), await bench.chain.receipt(batch.hash)
    assert first is not None and second is not None
    paid = [
        [each.args["requestId"] for each in receipt.events if each.name == "ResultFulfilled"]
        for receipt in (first, second)
    ]
    assert paid == [ids[:1], ids[1:]]

    await bench.index()
    await bench.settle()
    assert len(bench.sent) == 2
    assert await outcome(bench, 1) == "included"
    await bench.oracle()


async def test_batch__contract_fails__is_drafted_anew_when_it_works(bench: Bench) -> None:
    await bench.serve()
    await bench.services.settler.step()
    code = await bench.rpc("eth_getCode", bench.chain.market, "latest")
    await bench.rpc("anvil_setCode", bench.chain.market, REVERTS)
    await bench.mine()
    receipt = await bench.chain.receipt(bench.sent[1].hash)
    assert receipt is not None and not receipt.succeeded
    await bench.index()
    await bench.services.settler.step()
    assert await outcome(bench, 1) == "reverted"
    assert len(bench.sent) == 2, "a simulation says that it would fail again"
    await bench.rpc("anvil_setCode", bench.chain.market, code)
    bench.clock.advance(20_000)
    await bench.settle()
    assert len(bench.sent) == 3
    await bench.oracle()


async def test_batch__gas_is_not_enough__is_drafted_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gas_limit = Sender._gas_limit

    def too_little(sender: Sender, draft: Draft) -> int:
        return 60_000 if draft.kind == "submit_results" else gas_limit(sender, draft)

    await bench.serve()
    monkeypatch.setattr(Sender, "_gas_limit", too_little)
    await bench.services.settler.step()
    monkeypatch.undo()
    await bench.mine()
    receipt = await bench.chain.receipt(bench.sent[1].hash)
    assert receipt is not None and not receipt.succeeded
    assert receipt.gas_used == 60_000
    await bench.index()
    await bench.settle()
    assert await outcome(bench, 1) == "reverted"
    assert len(bench.sent) == 3
    await bench.oracle()


async def test_batch__blocks_are_smaller_when_it_is_sent__waits_until_they_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = int((await bench.rpc("eth_getBlockByNumber", "latest", False))["gasLimit"], 16)
    simulate = Web3Chain.simulate

    async def then_smaller(*values: object) -> object:
        outcomes = await simulate(*values)  # type: ignore[arg-type]
        await bench.rpc("evm_setBlockGasLimit", hex(60_000))
        return outcomes

    await bench.serve()
    monkeypatch.setattr(Web3Chain, "simulate", then_smaller)
    await bench.services.settler.step()
    monkeypatch.undo()
    with pytest.raises(Refused, match="gas_limit"):
        await bench.chain.send_raw(bench.sent[0].raw)
    for _ in range(3):
        await bench.mine()
        await bench.index()
        bench.clock.advance(5_000)
        assert await bench.services.settler.step() is False
    await bench.rpc("evm_setBlockGasLimit", hex(limit))
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.settle()
    assert {each.hash for each in bench.sent} == {each.hash for each in bench.sent[:2]}
    await bench.oracle()


async def test_batch__blocks_become_smaller_while_it_waits__is_mined_when_they_are_not(bench: Bench) -> None:
    limit = int((await bench.rpc("eth_getBlockByNumber", "latest", False))["gasLimit"], 16)
    await bench.serve()
    await bench.services.settler.step()
    await bench.rpc("evm_setBlockGasLimit", hex(60_000))
    await bench.mine(2)
    await bench.index()
    assert await bench.mined_nonce() == bench.sent[0].nonce
    assert await bench.services.settler.step() is False
    await bench.rpc("evm_setBlockGasLimit", hex(limit))
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle()
