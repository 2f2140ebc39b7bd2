"""Reconciling: a relayer that works is in order at every step; what is broken by hand is found."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from headrace.core.batching import BatchPolicy
from headrace.core.errors import ChainUnavailable
from headrace.core.reconciliation import Discrepancy
from headrace.services.reconciler import Reconciler, ReconcilerSettings
from tests.services.world import World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)


def reconciler(world: World) -> Reconciler:
    settings = ReconcilerSettings(range_blocks=2)
    return Reconciler(world.chain, world.store, world.metrics, world.signer.address, 0, world.chain.terms, settings)


async def test_step__whole_life_of_a_request__is_in_order_at_every_step() -> None:
    async with a_world(batching=AT_ONCE) as world:
        reconciling = reconciler(world)
        assert await reconciling.step() is None
        ids = await world.serve(world.request(salt=1), world.request(salt=2))
        done = await reconciling.step()
        assert done is not None
        assert (done.requests, done.open, done.findings) == (2, 2, ())
        await world.settle()
        done = await reconciling.step()
        assert done is not None
        assert (done.requests, done.fulfilled, done.findings, done.underpaid_wei) == (2, 2, (), 0)
        world.chain.mine()
        await world.index()
        done = await reconciling.step()
        assert done is not None
        assert done.requests == 0, "what has ended is not looked at again"
        assert len(ids) == 2
        assert world.metrics.gauges[("headrace_discrepancies", "kind=lost")] == 0


async def test_step__expired_in_time__is_in_order() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        stored = await world.store.request(id_)
        assert stored is not None
        world.clock.advance((stored.effective_deadline_s + world.chain.terms.grace_s + 1) * 1000 - world.clock.now_ms())
        world.chain.mine()
        await world.index()
        await world.reaper.step()
        world.chain.mine()
        await world.index()
        done = await reconciler(world).compare(0, 99)
        assert (done.requests, done.expired, done.findings) == (1, 1, ())


async def test_compare__underpaid_after_its_fee_was_raised__counts_the_raise() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        added_wei = 10**14
        world.chain.mine(world.chain.raised(id_, added_wei, added_wei), world.chain.fulfilled(id_, node_paid=1))
        await world.index()
        done = await reconciler(world).compare(0, 99)
        owed_wei = 11 * 10**12 + (world.request().priority_fee_wei + added_wei) * 8 // 10
        assert done.underpaid_wei == owed_wei - 1


async def test_compare__store_does_not_know_a_request__is_lost() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())

        async def forget(_: str) -> None:
            return None

        world.store.request = forget  # type: ignore[method-assign,assignment]
        done = await reconciler(world).compare(0, 99)
        assert [(each.kind, each.request_id) for each in done.findings] == [(Discrepancy.LOST, id_)]


async def test_compare__store_missed_the_settlement__is_stuck() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settle()
        async with world.store._database.write() as connection:
            await connection.execute(text("UPDATE requests SET state = 'signed'"))
        done = await reconciler(world).compare(0, 99)
        assert [(each.kind, each.request_id) for each in done.findings] == [(Discrepancy.STUCK, id_)]


async def test_compare__range__is_of_the_requests_posted_in_it() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (first,) = await world.post(world.request(salt=1))
        (second,) = await world.post(world.request(salt=2))
        stored = await world.store.request(second)
        assert stored is not None
        reconciling = reconciler(world)
        assert (await reconciling.compare(0, stored.block_number - 1)).requests == 1
        assert (await reconciling.compare(stored.block_number, stored.block_number)).requests == 1
        assert (await reconciling.compare(0, stored.block_number)).requests == 2
        assert first != second


async def test_compare__chain_changed_its_mind__says_so_instead_of_judging() -> None:
    async with a_world() as world:
        await world.post(world.request())
        world.chain.reorg(1)
        with pytest.raises(ChainUnavailable, match="try again"):
            await reconciler(world).compare(0, 99)


async def test_compare__store_went_on_meanwhile__is_no_difference() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request())
        reconciling, settled = reconciler(world), False
        statuses = world.store.request

        async def settle_first(request_id: str) -> object:
            nonlocal settled
            if not settled:
                settled = True
                await world.settle()
            return await statuses(request_id)

        world.store.request = settle_first  # type: ignore[method-assign,assignment]
        assert (await reconciling.compare(0, 99)).findings == ()
