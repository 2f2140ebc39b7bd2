"""F03: a reorg takes a request away after its result was sent. It is withdrawn; a result that comes to the chain all
the same pays nothing; and when the request is back, it is served once, with the answer that is there."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def test_reorg__request_is_gone__its_result_is_skipped_and_it_is_served_when_it_is_back(bench: Bench) -> None:
    (id_,) = await bench.serve()
    stored = await bench.store.request(id_)
    assert stored is not None
    request = await bench.raw_of(stored.transaction_hash)
    await bench.services.settler.step()
    await bench.rpc("anvil_reorg", 1, [])  # what was in no block yet is still in the pool
    await bench.index()
    assert await bench.state(id_) == "withdrawn"

    await bench.mine()
    await bench.index()
    assert await bench.services.sender.confirm() == []
    receipt = await bench.chain.receipt(bench.sent[1].hash)
    assert receipt is not None and receipt.succeeded
    assert [each.args["statuses"] for each in receipt.events] == ["0x01"]  # UNKNOWN
    assert await bench.services.settler.step() is False
    await bench.oracle({id_: "gone"})

    await bench.rpc("eth_sendRawTransaction", request)
    await bench.mine()
    await bench.index()
    assert await bench.state(id_) == "signed"
    await bench.settle()
    assert [task for node in bench.link.nodes.values() for task in node.tasks] == []
    await bench.oracle()


async def test_reorg__request_is_back_before_its_result__is_paid_by_the_bytes_that_were_sent(bench: Bench) -> None:
    """As with geth, which puts what a reorg took back into its pool."""
    (id_,) = await bench.serve()
    stored = await bench.store.request(id_)
    assert stored is not None
    request = await bench.raw_of(stored.transaction_hash)
    await bench.services.settler.step()
    await bench.rpc("anvil_reorg", 1, [])
    await bench.index()
    assert await bench.state(id_) == "withdrawn"
    await bench.rpc("eth_sendRawTransaction", request)
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle()


async def test_reorg__request_is_gone_before_it_is_sent__nothing_is(bench: Bench) -> None:
    (id_,) = await bench.serve()
    assert await bench.state(id_) == "signed"
    await bench.rpc("anvil_reorg", 1, [])
    await bench.index()
    await bench.services.settler.step()
    assert bench.sent == []
    await bench.oracle({id_: "gone"})
