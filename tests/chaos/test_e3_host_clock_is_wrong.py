"""E3: the host's clock is an hour off, or is set back while transactions are under way. What the chain decides is
decided by block time: no result is lost or sent too late, nothing expires early, and what is stuck is still pushed."""

from __future__ import annotations

import pytest

from tests.chaos.bench import TTL_S, Bench

HOUR_MS = 3_600_000


@pytest.mark.parametrize("skew_ms", [HOUR_MS, -HOUR_MS])
async def test_clock__an_hour_off__requests_are_served_and_nothing_expires(bench: Bench, skew_ms: int) -> None:
    long_s = await bench.anvil.now_s() + 3 * TTL_S
    bench.clock.advance(skew_ms)
    await bench.serve(2, deadline_s=long_s)
    assert await bench.services.reaper.step() == 0
    await bench.settle()
    await bench.oracle()


async def test_clock__an_hour_ahead_of_a_deadline__expires_by_block_time_only(bench: Bench) -> None:
    (id_,) = await bench.post(deadline_s=await bench.anvil.now_s() + TTL_S // 2)
    bench.clock.advance(HOUR_MS)
    await bench.answer([id_])
    assert await bench.state(id_) == "eligible", "by its clock, it would come too late"
    assert await bench.services.reaper.step() == 0
    await bench.oracle({id_: "open"})
    await bench.rpc("evm_increaseTime", TTL_S)
    await bench.mine()
    await bench.index()
    await bench.settle()
    await bench.oracle({id_: "expired"})


async def test_clock__set_back_while_sending__lost_transactions_are_still_sent_and_bid_more(bench: Bench) -> None:
    await bench.serve()
    bench.proxy.faults.swallow = True
    await bench.services.settler.step()
    bench.clock.advance(-HOUR_MS)
    await bench.services.sender.confirm()
    assert len(bench.sent) == 4
    bench.clock.advance(46_000)
    await bench.services.sender.confirm()
    record, _ = await bench.store.open_intents()
    assert len(record.attempts) > 1
    bench.proxy.faults.swallow = False
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.settle()
    await bench.oracle()
