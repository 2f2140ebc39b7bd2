"""E4: the node says nothing any more and keeps the connection open. The relayer needs no subscription: it asks, gives
each question up in time, concludes nothing, and finds by the next poll what it missed."""

from __future__ import annotations

import pytest

from headrace.core.errors import ChainUnavailable
from tests.chaos.bench import Bench
from tests.chaos.fault_proxy import SEND


async def test_node__hangs__questions_end_and_the_next_poll_finds_all(bench: Bench) -> None:
    (id_,) = await bench.serve()
    rpc, before = bench.chain._rpc, await bench.store.last_block()
    patience_s, rpc._timeout_s = rpc._timeout_s, 0.02
    bench.proxy.faults.hang = {"eth_getBlockByNumber", "eth_feeHistory", SEND}
    for step in (bench.services.indexer.step, bench.services.settler.step):
        with pytest.raises(ChainUnavailable, match="did not answer"):
            await step()
    assert await bench.store.last_block() == before
    assert bench.sent == []
    rpc._timeout_s = patience_s
    bench.proxy.faults.hang = set()
    ids = await bench.put(3)
    await bench.index()
    assert {each: await bench.state(each) for each in ids} == dict.fromkeys(ids, "eligible")
    await bench.answer(ids)
    await bench.settle()
    assert await bench.state(id_) == "fulfilled"
    await bench.oracle()


async def test_send__hangs__whether_it_was_taken_is_found_out_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_raw = bench.chain.send_raw

    async def hurried(raw: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(bench.chain._rpc, "_timeout_s", 0.02)
            await send_raw(raw)

    await bench.serve()
    bench.proxy.faults.hang = {SEND}
    monkeypatch.setattr(bench.chain, "send_raw", hurried)
    await bench.services.settler.step()
    monkeypatch.undo()
    bench.proxy.faults.hang = set()
    assert len(await bench.store.open_intents()) == 2
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent[2:]] == [each.raw for each in bench.sent[:2]]
    await bench.settle()
    await bench.oracle()
