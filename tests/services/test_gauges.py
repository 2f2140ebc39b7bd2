"""What is measured now and then."""

from __future__ import annotations

from headrace.services.gauges import Gauges
from tests.services.world import a_world


async def test_step__two_nodes_linked__tells_them_and_the_balance() -> None:
    async with a_world(nodes=2) as world:
        gauges = Gauges(world.chain, world.link, world.metrics, world.signer.address)
        await gauges.step()
        assert world.metrics.gauges[("headrace_linked_nodes",)] == 2
        balance_wei = await world.chain.balance_wei(world.signer.address)
        assert world.metrics.gauges[("headrace_relayer_balance_wei",)] == balance_wei
