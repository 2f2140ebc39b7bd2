"""F06: the head has the number that it had, another hash, and an earlier time. Hashes decide, and a time that went back
does no harm: what was sent too early by it does nothing, and is done again when it is time."""

from __future__ import annotations

from tests.chaos.bench import TTL_S, Bench


async def test_reorg__same_height__is_seen_by_the_hash(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.pass_time(100)
    await bench.mine()
    await bench.index()
    before = await bench.chain.head()
    await bench.rpc("anvil_reorg", 1, [])
    after = await bench.chain.head()
    assert (after.number, after.parent_hash) == (before.number, before.parent_hash)
    assert after.hash != before.hash
    assert after.timestamp_s < before.timestamp_s

    await bench.index()
    assert await bench.store.last_block() == after
    assert bench.metrics.counts[("headrace_reorgs_total",)] == 1
    await bench.settle()
    await bench.oracle()
    assert await bench.state(id_) == "fulfilled"


async def test_reorg__time_goes_back_below_a_deadline__expires_once_when_it_is_over(bench: Bench) -> None:
    (id_,) = await bench.post()
    bench.link.nodes.clear()
    terms = await bench.chain.market_terms()
    await bench.pass_time(TTL_S + terms.grace_s + 10)
    await bench.mine()
    await bench.index()
    assert await bench.services.reaper.step() == 1

    await bench.rpc("anvil_reorg", 1, [])
    head = await bench.chain.head()
    assert head.timestamp_s < bench.requests[id_].deadline_s
    await bench.rpc("evm_setNextBlockTimestamp", head.timestamp_s + 1)
    await bench.mine()
    await bench.index()
    assert await bench.services.sender.confirm() == []
    assert await bench.services.reaper.step() == 0
    await bench.oracle({id_: "open"})

    await bench.rpc("evm_setNextBlockTimestamp", bench.requests[id_].deadline_s + terms.grace_s + 1)
    await bench.mine()
    await bench.index()
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle({id_: "expired"})
