"""F05: a reorg keeps a result and loses the record of its round. Both are of one key and in the order of its nonces, so
no block takes the result alone; and were it another's transaction, the market pays nothing without the record. The
record goes out first again."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def names(bench: Bench) -> list[str]:
    return [each.name for each in await bench.events("RoundRecorded", "ResultFulfilled")]


async def test_reorg__only_the_result_is_sent_again__waits_for_its_record(bench: Bench) -> None:
    await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    record, result = bench.sent
    await bench.rpc("anvil_reorg", 1, [])
    await bench.send(result.raw)
    await bench.mine()
    assert await names(bench) == []

    await bench.index()
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent[2:]] == [record.raw, result.raw]
    await bench.settle()
    assert await names(bench) == ["RoundRecorded", "ResultFulfilled"]
    await bench.oracle()


async def test_reorg__result_comes_by_another_key_without_the_record__is_not_paid(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    await bench.rpc("anvil_reorg", 1, [])
    other = await bench.by_another(2, bench.results_by_another(2, [id_]))
    await bench.mine()
    receipt = await bench.chain.receipt(other)
    assert receipt is not None and receipt.succeeded
    (settled,) = [each for each in receipt.events if each.name == "BatchSettled"]
    assert settled.args["statuses"] == "0x09"  # NO_ROUND
    assert await names(bench) == []

    await bench.index()
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.settle()
    assert await names(bench) == ["RoundRecorded", "ResultFulfilled"]
    await bench.oracle()
