"""F07: the chain leaves more behind than the relayer undoes by itself: it stops, says so, has undone nothing, and sends
nothing; with leave to go deeper it rebuilds from the common ancestor. A reorg below what the node called final is
followed like any other, within that bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.services.indexer import ReorgTooDeep
from tests.chaos.bench import a_bench


async def test_reorg__deeper_than_allowed__stops_and_undoes_nothing_until_it_may(tmp_path: Path) -> None:
    async with a_bench(tmp_path / "relayer.db", max_rewind=8) as bench:
        (id_,) = await bench.serve()
        stored = await bench.store.request(id_)
        assert stored is not None
        request = await bench.raw_of(stored.transaction_hash)
        await bench.settle()
        await bench.mine(10)
        await bench.index()
        last, sent = await bench.store.last_block(), len(bench.sent)
        await bench.rpc("anvil_reorg", 12, [])
        for _ in range(2):
            with pytest.raises(ReorgTooDeep, match="deeper than 8 blocks"):
                await bench.services.indexer.step()
        await bench.store.close()
        bench.services = await bench.start()
        with pytest.raises(ReorgTooDeep, match="HEADRACE_CHAIN__MAX_REWIND"):
            await bench.services.indexer.step()
        assert not bench.services.indexer.caught_up.is_set(), "nothing is begun after a start either"
        assert await bench.store.last_block() == last
        assert await bench.state(id_) == "fulfilled"
        assert len(bench.sent) == sent

        bench.indexer_settings = replace(bench.indexer_settings, max_rewind=64)
        await bench.restart()
        await bench.oracle({id_: "gone"})
        await bench.rpc("eth_sendRawTransaction", request)
        await bench.mine()
        await bench.index()
        await bench.settle()
        await bench.oracle()


async def test_reorg__below_final__is_followed(tmp_path: Path) -> None:
    async with a_bench(tmp_path / "relayer.db", "--slots-in-an-epoch", "1") as bench:
        (id_,) = await bench.serve()
        await bench.settle()
        (closing,) = await bench.closings(id_)
        await bench.mine(5)
        await bench.index()
        final = int((await bench.rpc("eth_getBlockByNumber", "finalized", False))["number"], 16)
        assert final > closing.block_number
        head = await bench.chain.head()
        await bench.rpc("anvil_reorg", head.number - closing.block_number + 1, [])
        await bench.index()
        assert await bench.state(id_) == "settling"
        bench.clock.advance(5_000)
        await bench.services.sender.confirm()
        await bench.settle()
        await bench.oracle()
