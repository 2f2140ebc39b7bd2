"""F11: the head goes back. A lower head with the same hashes is a node that lags: nothing is undone and nothing is sent
again on its word. A chain that is really shorter is only known by its next other block."""

from __future__ import annotations

from tests.chaos.bench import TTL_S, Bench


async def test_head__node_lags__nothing_is_undone_or_sent_again(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.settle()
    await bench.mine(3)
    await bench.index()
    last, sent = await bench.store.last_block(), len(bench.sent)
    bench.proxy.faults.lag_blocks = 4
    assert last is not None
    assert (await bench.chain.head()).number == last.number - 4
    assert (await bench.chain.transaction_count(bench.signer.address)) < await bench.mined_nonce()

    bench.clock.advance(60_000)
    assert await bench.services.indexer.step() is False
    assert await bench.services.settler.step() is False
    assert await bench.store.last_block() == last
    assert await bench.state(id_) == "fulfilled"
    bench.proxy.faults.lag_blocks = 0
    await bench.serve()
    await bench.settle()
    assert len(bench.sent) == sent + 2
    await bench.oracle()


async def test_head__node_lags_behind_a_receipt__its_round_is_not_recorded_again(bench: Bench) -> None:
    """The receipt is there, its events are not yet, and the views are of a block before, all at one endpoint."""
    await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    assert await bench.services.sender.confirm() == []
    bench.proxy.faults.lag_blocks = 1
    assert await bench.chain.recorded_at_s(bench.signer.address, 1) == 0

    for _ in range(3):
        await bench.services.settler.step()
        bench.clock.advance(1_000)
    bench.proxy.faults.lag_blocks = 0
    await bench.index()
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle()


async def test_head__chain_is_shorter__is_undone_when_another_block_comes(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.mine()
    await bench.settle()
    await bench.mine()
    await bench.index()
    last = await bench.store.last_block()
    sent = [each.raw for each in bench.sent]
    await bench.rpc("anvil_rollback", 3)
    assert await bench.services.indexer.step() is False
    assert await bench.store.last_block() == last

    await bench.mine()
    await bench.index()
    assert last is not None
    assert (await bench.chain.head()).number == last.number - 2
    assert await bench.state(id_) == "settling"
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent] == [*sent, *sent]
    await bench.settle()
    await bench.oracle()


async def test_head__node_lags_behind_an_expiry__it_is_not_sent_again(bench: Bench) -> None:
    (id_,) = await bench.post()
    bench.link.nodes.clear()
    terms = await bench.chain.market_terms()
    await bench.pass_time(TTL_S + terms.grace_s + 10)
    await bench.mine()
    await bench.index()
    assert await bench.services.reaper.step() == 1
    await bench.mine()
    assert await bench.services.sender.confirm() == []
    bench.proxy.faults.lag_blocks = 1
    await bench.services.reaper.step()
    bench.proxy.faults.lag_blocks = 0
    await bench.index()
    await bench.settle()
    assert len(bench.sent) == 1
    await bench.oracle({id_: "expired"})
