"""What nobody answered goes back, unasked."""

from __future__ import annotations

from tests.services.world import World, a_world


async def _after(world: World, deadline_s: int, seconds: int) -> None:
    world.clock.advance((deadline_s + seconds) * 1000 - world.clock.now_ms())
    world.chain.mine()
    await world.index()


async def test_step__grace_not_over__leaves_it() -> None:
    async with a_world(nodes=0) as world:
        request = world.request()
        await world.post(request)
        await _after(world, request.deadline_s, world.chain.terms.grace_s)
        assert await world.reaper.step() == 0


async def test_step__grace_over__is_expired_and_refunded() -> None:
    async with a_world(nodes=0) as world:
        request = world.request()
        (id_,) = await world.post(request)
        await _after(world, request.deadline_s, world.chain.terms.grace_s + 1)
        assert await world.reaper.step() == 1
        assert await world.reaper.step() == 0, "one is under way already"
        world.chain.mine()
        await world.sender.confirm()
        await world.index()
        assert await world.state(id_) == "expired"
        stored = await world.store.request(id_)
        assert stored is not None
        assert stored.closed is not None
        assert int(stored.closed["refund"]) == request.escrow_wei
        assert await world.reaper.step() == 0


async def test_step__requests_of_another_relayer__are_left_to_it() -> None:
    async with a_world(nodes=0) as world:
        request = world.request(relayer="0x" + "99" * 20)
        await world.post(request)
        await _after(world, request.deadline_s, world.chain.terms.grace_s + 1)
        assert await world.reaper.step() == 0
