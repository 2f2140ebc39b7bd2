"""F08: a reorg while the relayer is down. At its start it holds what it stored against the chain before it sends
anything, goes back, and goes on from there."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def test_start__result_was_reorged_out_meanwhile__is_seen_before_anything_is_sent(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.settle()
    await bench.mine(2)
    await bench.index()
    await bench.store.close()
    sent = [each.raw for each in bench.sent]
    await bench.rpc("anvil_reorg", 3, [])
    bench.services = await bench.start()
    assert await bench.state(id_) == "fulfilled", "as it was stored"
    assert not bench.services.indexer.caught_up.is_set(), "so no loop that sends is begun"

    await bench.index()
    assert bench.services.indexer.caught_up.is_set()
    assert await bench.state(id_) == "settling"
    assert len(bench.sent) == len(sent)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent[len(sent) :]] == sent
    await bench.settle()
    await bench.oracle()
