"""F17: a transaction falls out of the pool, and those behind it with it. The same bytes go in again, the lowest nonce
first, and no further nonce is given while there is a hole."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def test_pool__drops_the_first__all_go_in_again_in_their_order(bench: Bench) -> None:
    sent = await bench.send_three()
    await bench.rpc("anvil_dropTransaction", sent[0].hash)
    await bench.mine()
    assert await bench.mined_nonce() == sent[0].nonce
    assert [await bench.rpc("eth_getTransactionByHash", each.hash) for each in sent] == [None] * 3

    bench.clock.advance(5_000)
    assert await bench.services.settler.step() is False
    assert [each.raw for each in bench.sent[3:]] == [each.raw for each in sent]
    await bench.settle()
    await bench.oracle(bench.expiring)


async def test_pool__drops_the_first_only__it_goes_in_before_the_others(bench: Bench) -> None:
    """geth keeps those behind it in its queue."""
    sent = await bench.send_three()
    await bench.rpc("anvil_dropTransaction", sent[0].hash)
    for each in sent[1:]:
        await bench.send(each.raw)
    await bench.mine()
    assert await bench.mined_nonce() == sent[0].nonce
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert bench.sent[3].raw == sent[0].raw
    await bench.settle()
    assert {each.hash for each in bench.sent} == {each.hash for each in sent}
    await bench.oracle(bench.expiring)
