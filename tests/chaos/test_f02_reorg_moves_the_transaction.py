"""F02: a reorg puts our transactions into other blocks, or elsewhere in theirs. The store follows; each event counts
once, and nothing is sent again."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def test_reorg__result_is_in_another_block__is_followed_and_nothing_is_sent(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.mine(2)
    await bench.index()
    await bench.services.sender.confirm()
    (closing,) = await bench.closings(id_)
    raws = ["0x" + each.raw.hex() for each in bench.sent]

    await bench.rpc("anvil_reorg", 2, [[raws[0], 0], [raws[1], 1]])
    await bench.index()
    (moved,) = await bench.closings(id_)
    assert moved.block_number == closing.block_number + 1
    assert moved.block_hash != closing.block_hash
    stored = await bench.store.request(id_)
    assert stored is not None and stored.closed is not None
    assert stored.closed["block_number"] == moved.block_number

    bench.clock.advance(60_000)
    assert await bench.services.sender.confirm() == []
    assert len(bench.sent) == 2
    await bench.oracle()


async def test_reorg__request_has_another_log_index__is_one_request(bench: Bench) -> None:
    """A log's index counts in its block, so it is no part of what an event is."""
    (id_,) = await bench.post()
    stored = await bench.store.request(id_)
    assert stored is not None
    ours = await bench.raw_of(stored.transaction_hash)
    market = bench.anvil.deployment.address_of("InferenceMarket")
    deposit = bench.anvil.contract("InferenceMarket").encode_abi("deposit", [bench.anvil.contract("Faults").address])
    other, _ = await bench.anvil.sign(2, market, deposit, value=1)

    await bench.rpc("anvil_reorg", 1, [["0x" + other.hex(), 0], [ours, 0]])
    await bench.index()
    (event,) = await bench.events("InferenceRequested")
    assert event.log_index == 1
    stages = [each.stage for each in await bench.store.timeline(id_)]
    assert stages.count("orphaned") == stages.count("reincluded") == 1
    await bench.answer([id_])
    await bench.settle()
    await bench.oracle()
