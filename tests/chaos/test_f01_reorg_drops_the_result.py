"""F01: a shallow reorg drops our mined result: the same bytes go out again, and no new signature is made."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def test_reorg__result_is_gone__same_bytes_are_sent_again(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    assert await bench.state(id_) == "fulfilled"
    sent = [each.raw for each in bench.proxy.wire]

    await bench.rpc("anvil_reorg", 1, [])
    await bench.index()
    assert await bench.state(id_) == "settling"
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.proxy.wire[len(sent) :]] == sent

    await bench.settle()
    await bench.oracle()


async def test_reorg__pool_has_it_again_by_itself__nothing_is_paid_twice(bench: Bench) -> None:
    """geth puts what a reorg took back into its pool, anvil does not."""
    await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    raws = [each.raw for each in bench.proxy.wire]
    await bench.rpc("anvil_reorg", 1, [])
    for raw in raws:
        await bench.rpc("eth_sendRawTransaction", "0x" + raw.hex())
    await bench.index()
    await bench.settle()
    await bench.oracle()


async def test_reorg__receipt_was_seen_and_its_block_is_never_indexed__is_sent_again(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    assert await bench.services.sender.confirm() == []
    sent = [each.raw for each in bench.proxy.wire]
    await bench.rpc("anvil_reorg", 1, [])
    await bench.index()
    assert await bench.state(id_) == "settling"
    assert len(await bench.store.open_intents()) == 2
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.proxy.wire[len(sent) :]] == sent
    await bench.settle()
    await bench.oracle()
