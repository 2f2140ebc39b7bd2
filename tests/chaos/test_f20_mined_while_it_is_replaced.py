"""F20: the original is mined while its replacement is on its way. The replacement's "nonce too low" is a reason to
look, never one to take another nonce; whichever of the two is in a block ends the intent."""

from __future__ import annotations

import pytest

from tests.chaos.bench import Bench
from tests.chaos.fault_proxy import Wire


@pytest.mark.parametrize("receipts_are_late", [False, True])
async def test_replacement__original_is_mined_meanwhile__ends_the_intent(bench: Bench, receipts_are_late: bool) -> None:
    await bench.serve()
    await bench.services.settler.step()
    record, batch = bench.sent
    witness = bench.proxy.on_transaction
    assert witness is not None

    async def mine_first(wire: Wire) -> None:
        await witness(wire)
        if wire.hash not in (record.hash, batch.hash):
            await bench.mine()

    bench.proxy.on_transaction = mine_first
    bench.clock.advance(46_000)
    await bench.services.sender.confirm()
    replacement = bench.sent[2]
    assert replacement.nonce == record.nonce
    assert bench.metrics.counts[("headrace_transactions_refused_total", "kind=record_round")] == 1

    bench.proxy.faults.null_receipts = receipts_are_late
    for _ in range(5 if receipts_are_late else 0):
        await bench.mine()
        await bench.index()
        bench.clock.advance(5_000)
        assert await bench.services.settler.step() is False
    bench.proxy.faults.null_receipts = False
    await bench.index()
    await bench.settle()
    ended = await bench.store.intent_of_transaction(record.hash)
    assert ended is not None
    assert [each.transaction_hash for each in ended.attempts] == [record.hash, replacement.hash]
    assert ended.state == "included"
    assert {each.nonce for each in bench.sent} == {record.nonce, batch.nonce}
    await bench.oracle()
