"""F15: a transaction is accepted and no pool ever has it, or it never arrived. The same bytes go out again, without a
new bid at first; and if nothing helps, bids end at a bound and the operator is told."""

from __future__ import annotations

from tests.chaos.bench import Bench
from tests.chaos.fault_proxy import SEND


async def test_send__swallowed__same_bytes_are_sent_again(bench: Bench) -> None:
    await bench.serve()
    bench.proxy.faults.swallow = True
    await bench.services.settler.step()
    await bench.mine()
    assert await bench.mined_nonce() == bench.sent[0].nonce
    bench.proxy.faults.swallow = False
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent[2:]] == [each.raw for each in bench.sent[:2]]
    await bench.settle()
    await bench.oracle()


async def test_send__never_arrives__same_bytes_are_sent_again(bench: Bench) -> None:
    await bench.serve()
    bench.proxy.faults.drop = {SEND}
    await bench.services.settler.step()
    bench.proxy.faults.drop = set()
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent[2:]] == [each.raw for each in bench.sent[:2]]
    await bench.settle()
    await bench.oracle()


async def test_send__swallowed_for_good__bids_stop_and_the_operator_is_told(bench: Bench) -> None:
    await bench.serve()
    bench.proxy.faults.swallow = True
    await bench.services.settler.step()
    for _ in range(40):
        bench.clock.advance(60_000)
        await bench.services.sender.confirm()
    record, batch = await bench.store.open_intents()
    assert len(batch.attempts) == 1, "what is behind it need not bid"
    assert 5 < len(record.attempts) <= 20
    assert record.attempts[-1].max_fee_wei <= 5 * record.attempts[0].max_fee_wei
    assert bench.metrics.counts[("headrace_transactions_held_total", "kind=record_round")] == 1
    assert len(bench.sent) <= 2 * 41

    bench.proxy.faults.swallow = False
    await bench.services.sender.confirm()
    await bench.settle()
    await bench.oracle()
