"""F04: a reorg puts requests into another order. With ids from a counter, each would get the other's answer; ours are
made of what is asked, so nothing of them changes and the results that were computed stay good."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def test_reorg__requests_change_places__each_is_paid_for_its_own_answer(bench: Bench) -> None:
    ids = [*await bench.post(), *await bench.post(account=0)]
    stored = [await bench.store.request(id_) for id_ in ids]
    raws = [await bench.raw_of(each.transaction_hash) for each in stored if each]
    await bench.answer(ids)
    assert {id_: await bench.state(id_) for id_ in ids} == dict.fromkeys(ids, "signed")

    await bench.rpc("anvil_reorg", 2, [[raws[1], 0], [raws[0], 1]])
    await bench.index()
    moved = [await bench.store.request(id_) for id_ in ids]
    blocks = [each.block_number for each in moved if each]
    assert blocks == [each.block_number for each in stored if each][::-1]
    assert [each.request for each in moved if each] == [each.request for each in stored if each]
    assert {id_: await bench.state(id_) for id_ in ids} == dict.fromkeys(ids, "signed")

    await bench.settle()
    await bench.oracle()
