"""F21: a batch is in no block until nobody is paid for it any more, by the chain's time. Its nonce goes to one that
does nothing, no result is signed later, and its requests expire once. If it is mined all the same, it counts."""

from __future__ import annotations

import pytest

from headrace.adapters.web3_chain import Web3Chain
from headrace.ports import StoredIntent
from tests.chaos.bench import Bench, fields_of


async def stuck(bench: Bench) -> StoredIntent:
    """A batch that no pool has; its record is in a block."""
    await bench.serve()
    await bench.services.settler.step()
    await bench.rpc("anvil_dropTransaction", bench.sent[1].hash)
    await bench.mine()
    await bench.index()
    bench.proxy.faults.swallow = True
    await bench.services.sender.confirm()
    return await bench.batch()


async def test_pending__nobody_is_paid_any_more__nonce_is_given_up_and_the_request_expires(bench: Bench) -> None:
    batch = await stuck(bench)
    await bench.rpc("evm_setNextBlockTimestamp", batch.until_s + 1)
    await bench.mine()
    await bench.index()
    bench.clock.advance((batch.until_s + 1) * 1000 - bench.clock.now_ms())
    bench.proxy.faults.swallow = False
    await bench.services.sender.confirm()
    last = (await bench.batch()).attempts[-1]
    assert last.is_noop
    noop = fields_of(last.raw)
    assert (noop["nonce"], noop["value"], bytes(noop["data"]), noop["gas"]) == (batch.nonce, 0, b"", 21_000)
    await bench.settle()
    ended = await bench.store.intent_of_transaction(last.transaction_hash)
    assert ended is not None and ended.state == "cancelled"
    await bench.oracle(dict.fromkeys(bench.requests, "expired"))


async def test_pending__result_is_mined_after_its_nonce_was_given_up__it_counts(bench: Bench) -> None:
    batch = await stuck(bench)
    await bench.send(batch.attempts[0].raw)
    await bench.rpc("evm_setNextBlockTimestamp", batch.until_s - 1)
    await bench.rpc("anvil_dropTransaction", batch.attempts[0].transaction_hash)
    await bench.mine()
    bench.clock.advance(60_000)
    await bench.services.sender.confirm()
    assert (await bench.batch()).attempts[-1].is_noop
    await bench.send(batch.attempts[0].raw)
    await bench.rpc("evm_setNextBlockTimestamp", batch.until_s)
    await bench.mine()
    await bench.index()
    bench.proxy.faults.swallow = False
    await bench.settle()
    ended = await bench.store.intent_of_transaction(batch.attempts[0].transaction_hash)
    assert ended is not None and ended.state == "included"
    await bench.oracle()


async def test_submit__time_passes_between_simulation_and_signature__only_the_nonce_is_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id_,) = await bench.serve()
    terms = await bench.chain.market_terms()
    until_s = bench.requests[id_].deadline_s + terms.grace_s
    simulate = Web3Chain.simulate

    async def late(*values: object) -> object:
        outcomes = await simulate(*values)  # type: ignore[arg-type]
        await bench.rpc("evm_setNextBlockTimestamp", until_s + 1)
        await bench.mine()
        return outcomes

    monkeypatch.setattr(Web3Chain, "simulate", late)
    await bench.services.settler.step()
    monkeypatch.undo()
    batch = await bench.batch()
    assert [each.is_noop for each in batch.attempts] == [True]
    bench.clock.advance((until_s + 1) * 1000 - bench.clock.now_ms())
    await bench.settle()
    await bench.oracle({id_: "expired"})
