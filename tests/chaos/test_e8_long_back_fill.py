"""E8: a long history is indexed while requests come in: none is missed, none is served before all is known, and steps
are as large as they may be."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.bench import a_bench

BLOCKS = 400  # ten thousand take anvil half a minute


async def test_back_fill__during_live_traffic__all_is_known_before_anything_is_served(tmp_path: Path) -> None:
    async with a_bench(tmp_path / "relayer.db", range_blocks=50) as bench:
        await bench.store.close()
        bench.database = tmp_path / "another.db"
        bench.services = await bench.start()
        old = await bench.put(2)
        await bench.mine(BLOCKS)
        steps, new = 0, []
        while not bench.services.indexer.caught_up.is_set():
            assert await bench.store.eligible(10) == []
            await bench.services.indexer.step()
            steps += 1
            if steps <= 5:
                new += await bench.put()
        assert steps <= BLOCKS // 50 + 2
        await bench.index()
        ids = [*old, *new]
        assert sorted(each.request_id for each in await bench.store.eligible(100)) == sorted(ids)
        await bench.answer(ids)
        await bench.settle()
        await bench.oracle()
