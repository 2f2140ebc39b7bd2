"""F13: the relayer catches up while new requests come in every block, and its process ends again and again. One path
of code, with blocks, events and cursor in one transaction: no event is missed at the seam, and none counts twice."""

from __future__ import annotations

from pathlib import Path

from headrace.adapters.sql import blocks
from tests.chaos.bench import a_bench, crash


async def test_index__history_becomes_live__each_event_is_there_once(tmp_path: Path) -> None:
    async with a_bench(tmp_path / "relayer.db", range_blocks=16) as bench:
        ids = await bench.put(2)
        await bench.mine(60)
        behind = []
        for _ in range(8):
            ids += await bench.put()
            await bench.services.indexer.step()
            last, head = await bench.store.last_block(), await bench.chain.head()
            assert last is not None
            behind.append(head.number - last.number)
            with crash(blocks, "_insert_events"):
                ids += await bench.put()
                await bench.services.indexer.step()
            await bench.store.close()
            bench.services = await bench.start()
        assert behind[0] > 32
        assert behind[-1] == 0
        await bench.index()
        logged = [each.args["requestId"] for each in await bench.events("InferenceRequested")]
        assert sorted(logged) == sorted(ids)
        entries = [each.stage for id_ in ids for each in await bench.store.timeline(id_)]
        assert entries.count("included") == entries.count("confirmed") == len(ids)
        await bench.oracle(dict.fromkeys(ids, "open"))
