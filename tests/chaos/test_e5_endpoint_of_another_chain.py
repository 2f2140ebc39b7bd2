"""E5: the endpoint is, or becomes, one of another chain. A start is refused; while it runs, nothing is undone and
nothing is sent there; what was signed is for one chain only."""

from __future__ import annotations

from contextlib import suppress

import pytest
from web3 import AsyncHTTPProvider, AsyncWeb3

from headrace.core.errors import ConfigurationError, HeadraceError
from headrace.services.indexer import ReorgTooDeep
from tests.chaos.bench import Bench
from tests.local_chain import running_anvil


async def test_start__other_chain_id__is_refused(bench: Bench) -> None:
    await bench.chain.check()
    bench.proxy.faults.chain_id = 1
    with pytest.raises(ConfigurationError, match="is a node of chain 1, but the deployment is of chain 31337"):
        await bench.chain.check()
    bench.proxy.faults.chain_id = None
    await bench.serve()
    await bench.settle()
    await bench.oracle()


@pytest.mark.parametrize("blocks", [0, 40])
async def test_run__endpoint_becomes_one_of_another_chain__nothing_is_undone_or_sent(bench: Bench, blocks: int) -> None:
    (id_,) = await bench.serve()
    last, upstream = await bench.store.last_block(), bench.proxy.upstream
    with running_anvil("--chain-id", "5") as other:
        web3 = AsyncWeb3(AsyncHTTPProvider(other))
        await web3.provider.make_request("anvil_mine", [hex(blocks)])
        bench.proxy.upstream = other
        if blocks:
            with pytest.raises(ReorgTooDeep, match="another chain"):
                await bench.services.indexer.step()
        else:
            assert await bench.services.indexer.step() is False
        for step in (bench.services.settler.step, bench.services.reaper.step):
            with suppress(HeadraceError):
                assert not await step()
        assert await bench.store.last_block() == last
        assert await bench.state(id_) == "signed"
        assert bench.sent == []
        bench.proxy.upstream = upstream
        await web3.provider.disconnect()
    await bench.settle()
    await bench.oracle()
