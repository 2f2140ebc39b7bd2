"""F12: the node answers `eth_getLogs` with fewer logs than there are, and no error. The headers say by their filters
which blocks have some: the cursor does not pass such a block until its logs are there.

A node that also denies a block's logs when it is asked for them by the block's hash cannot be told from one whose block
hit the filter by chance. What it tells later is found when the last blocks' events are asked for once more.
"""

from __future__ import annotations

import pytest

from headrace.core.errors import ChainUnavailable
from headrace.services.indexer import IndexerSettings
from tests.chaos.bench import Bench


@pytest.mark.parametrize("fault", ["empty_logs", "clipped_logs"])
async def test_logs__are_left_out__cursor_waits_and_no_event_is_lost(bench: Bench, fault: str) -> None:
    before = await bench.store.last_block()
    ids = await bench.put(3)
    setattr(bench.proxy.faults, fault, True)
    for _ in range(3):
        with pytest.raises(ChainUnavailable, match="left out logs"):
            await bench.services.indexer.step()
    assert await bench.store.last_block() == before
    assert await bench.store.requests() == []

    setattr(bench.proxy.faults, fault, False)
    await bench.index()
    assert {id_: await bench.state(id_) for id_ in ids} == dict.fromkeys(ids, "eligible")
    await bench.answer(ids)
    await bench.settle()
    await bench.oracle()


async def test_logs__of_a_settlement_are_left_out__it_is_not_settled_again(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    bench.proxy.faults.empty_logs = True
    with pytest.raises(ChainUnavailable, match="left out logs"):
        await bench.services.indexer.step()
    for _ in range(3):
        await bench.services.settler.step()
        bench.clock.advance(1_000)
    assert await bench.state(id_) == "settling"
    bench.proxy.faults.empty_logs = False
    await bench.index()
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle()


async def test_logs__are_denied_by_hash_too__what_is_told_later_is_taken_in(bench: Bench) -> None:
    (early,) = await bench.put(1)
    await bench.index()
    bench.proxy.faults.empty_logs = bench.proxy.faults.empty_block_logs = True
    (late,) = await bench.put(1)
    await bench.index()
    assert await bench.store.request(late) is None

    bench.proxy.faults.empty_logs = bench.proxy.faults.empty_block_logs = False
    for _ in range(IndexerSettings().reread_every_blocks):
        await bench.mine()
    await bench.index()
    assert {id_: await bench.state(id_) for id_ in (early, late)} == {early: "eligible", late: "eligible"}
    await bench.answer([early, late])
    await bench.settle()
    await bench.oracle()
