"""The spending limit: at it nothing new is stored or signed, nothing is lost, and no restart resets it."""

from __future__ import annotations

import pytest

from headrace.core.batching import BatchPolicy
from headrace.core.errors import ExpiredContext
from headrace.core.spending import WINDOW_MS, worst_wei
from headrace.services.pushing import Pusher, PushSettings
from tests.fakes import FakeSigner
from tests.services.world import World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
PAUSE_MS = 45_000


def restart(world: World, limit_wei: int, submitter: FakeSigner | None = None) -> None:
    """The sender anew, as a process that starts has it."""
    world.send_by(submitter)
    settings = PushSettings(spending_limit_wei=limit_wei)
    signer, guard = submitter or world.signer, world.sender._guard
    world.sender._pusher = Pusher(world.chain, world.store, world.clock, signer, world.metrics, guard, settings)


async def spent_wei(world: World) -> int:
    """What one request has cost at most."""
    await world.serve(world.request(salt=1))
    await world.settle()
    since = await world.store.signed_since(world.signer.address, 0)
    assert len(since) == 2
    return sum(each.worst_wei for each in since)


async def test_limit__reached__pauses_and_goes_on_by_itself() -> None:
    async with a_world(batching=AT_ONCE) as world:
        once = await spent_wei(world)
        restart(world, once * 3 // 2)
        (id_,) = await world.serve(world.request(salt=2))
        for _ in range(2):
            with pytest.raises(ExpiredContext, match="spending limit"):
                await world.settler.step()
        assert await world.store.open_intents() == []
        assert await world.state(id_) == "signed"
        assert world.metrics.gauges[("headrace_spending_paused", f"sender={world.signer.address}")] == 1
        assert world.metrics.gauges[("headrace_spent_wei", f"sender={world.signer.address}")] == once
        world.clock.advance(WINDOW_MS)
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert world.metrics.gauges[("headrace_spending_paused", f"sender={world.signer.address}")] == 0


async def test_limit__below_it__holds_nothing_back() -> None:
    async with a_world(batching=AT_ONCE) as world:
        once = await spent_wei(world)
        restart(world, 4 * once)
        for salt in (2, 3):
            (id_,) = await world.serve(world.request(salt=salt))
            await world.settle()
            assert await world.state(id_) == "fulfilled"


async def test_limit__restarts__do_not_reset_it() -> None:
    async with a_world(batching=AT_ONCE) as world:
        once = await spent_wei(world)
        (id_,) = await world.serve(world.request(salt=2))
        for _ in range(3):
            restart(world, once)
            with pytest.raises(ExpiredContext, match="spending limit"):
                await world.settler.step()
        # Another key's is another's.
        other = FakeSigner(77)
        restart(world, 10**18, other)
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert {each.intent_id for each in await world.store.signed_since(other.address, 0)} == {3, 4}


async def test_limit__transaction_is_stuck__the_last_bid_stands_until_more_may_be_spent() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request(deadline_s=world.clock.now_ms() // 1000 + 6_000))
        await world.settler.step()
        world.chain.drop_pool()
        stored = await world.store.open_intents()
        spent = sum(each.worst_wei for each in await world.store.signed_since(world.signer.address, 0))
        restart(world, spent)
        world.clock.advance(PAUSE_MS)
        await world.sender.confirm()
        assert [each.attempts for each in await world.store.open_intents()] == [each.attempts for each in stored]
        assert world.metrics.total("headrace_transactions_held_total") == 1
        restart(world, 2 * spent)
        await world.sender.confirm()
        record, _ = await world.store.open_intents()
        first, second = record.attempts
        limits = [worst_wei(record.gas_limit, each.max_fee_wei, 0) for each in (first, second)]
        assert (
            world.metrics.gauges[("headrace_spent_wei", f"sender={world.signer.address}")]
            <= spent + limits[1] - limits[0]
        )


async def test_signed_since__counts_what_was_signed_then_and_before_for_the_same_intent() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request(deadline_s=world.clock.now_ms() // 1000 + 6_000))
        start_ms = world.clock.now_ms()
        await world.settler.step()
        world.chain.drop_pool()
        world.clock.advance(PAUSE_MS)
        await world.sender.confirm()
        record, batch = await world.store.open_intents()
        assert (len(record.attempts), len(batch.attempts)) == (2, 1)
        store, key = world.store, world.signer.address
        assert [each.intent_id for each in await store.signed_since(key, start_ms - 1)] == [1, 1, 2]
        assert [each.intent_id for each in await store.signed_since(key, start_ms)] == [1, 1]
        assert await store.signed_since(key, world.clock.now_ms()) == []
        assert await store.signed_since("0x" + "99" * 20, 0) == []
