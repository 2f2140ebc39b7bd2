"""F09: a reorg turns a transaction of ours that succeeded into one that reverts, and the other way round. Neither is
final: what was served by another is done and not failed, and what succeeds after all is not sent again."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def sent_record(bench: Bench) -> tuple[str, dict[str, str]]:
    """The relayer's record in the pool, and the same record as another account brings it."""
    (round_,) = await bench.store.rounds()
    assert round_.record is not None
    call = bench.round_by_another(round_.record)
    other = {"from": bench.anvil.accounts[2], "to": call.to, "data": "0x" + call.data.hex(), "gas": hex(300_000)}
    return "0x" + bench.sent[0].raw.hex(), other


async def outcomes(bench: Bench) -> list[str]:
    found = [await bench.store.intent_of_transaction(each.hash) for each in bench.sent]
    return [each.state for each in found if each]


async def test_reorg__success_becomes_a_revert__what_is_done_is_not_done_again(bench: Bench) -> None:
    await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    assert await outcomes(bench) == ["included", "included"]
    record, other = await sent_record(bench)
    result = "0x" + bench.sent[1].raw.hex()

    await bench.rpc("anvil_reorg", 1, [[other, 0], [record, 0], [result, 0]])
    await bench.index()
    assert await bench.services.sender.confirm() == []
    assert await outcomes(bench) == ["reverted", "included"]
    await bench.settle()
    assert len(bench.sent) == 2, "the round is on record, whoever brought it"
    await bench.oracle()


async def test_reorg__revert_becomes_a_success__is_marked_done_and_not_sent_again(bench: Bench) -> None:
    await bench.serve()
    await bench.services.settler.step()
    record, other = await sent_record(bench)
    result = "0x" + bench.sent[1].raw.hex()
    await bench.mine()
    await bench.rpc("anvil_reorg", 1, [[other, 0], [record, 0], [result, 0]])
    await bench.index()
    await bench.services.sender.confirm()
    assert await outcomes(bench) == ["reverted", "included"]

    await bench.rpc("anvil_reorg", 1, [[record, 0], [result, 0]])
    await bench.index()
    assert await bench.services.sender.confirm() == []
    assert await outcomes(bench) == ["included", "included"]
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle()
