"""A relayer whose bond is on its way out begins nothing new, and settles what needs no bond."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headrace.core.batching import BatchPolicy
from headrace.core.errors import ChainUnavailable, NotBonded
from headrace.core.postings import PostingState
from headrace.core.tasks import Task
from headrace.core.types import ZERO_ADDRESS
from headrace.services.bonding import Bonding
from tests.fakes import FakeChain, FakeMetrics, LoopClock
from tests.services.post_office import post_office
from tests.services.world import World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
RELAYER = "0x" + "b1" * 20


def intents_sent(world: World) -> list[str]:
    return [event.name for event in world.chain.all_events() if event.name in ("RoundRecorded", "ResultFulfilled")]


async def assigned_together(world: World, *changes: dict[str, object]) -> list[Task]:
    """Tasks of one round, each request with its changes."""
    requests = [world.request(salt=salt, **each) for salt, each in enumerate(changes, 1)]
    ids = await world.post(*requests)
    for _ in ids:
        await world.cycle()
    (node,) = world.link.nodes.values()
    by_id = {task.assignment.request_id: task for task in node.tasks}
    return [by_id[id_] for id_ in ids]


async def record_a_round_but_for_an_open_race(world: World) -> str:
    """A round that is recorded, whose result of an open race comes late."""
    (node,), tasks = world.link.nodes.values(), await assigned_together(world, {"relayer": ZERO_ADDRESS}, {})
    await world.aggregator.delivered(node.deliver(tasks[1]))
    await world.settle()
    await world.aggregator.delivered(node.deliver(tasks[0]))
    return tasks[0].assignment.request_id


async def record_a_round_with_one_of_two(world: World) -> tuple[str, str]:
    """Two results of one round: one is settled with its record, the other comes late."""
    (node,), (first, second) = world.link.nodes.values(), await assigned_together(world, {}, {})
    await world.aggregator.delivered(node.deliver(first))
    await world.settle()
    assert (await world.store.round(1)).state == "recorded"  # type: ignore[union-attr]
    await world.aggregator.delivered(node.deliver(second))
    return first.assignment.request_id, second.assignment.request_id


# Beginning


async def test_cycle__bond_gone__nothing_is_assigned_until_it_is_back() -> None:
    async with a_world() as world:
        await world.post(world.request())
        await world.set_bonded(False)
        assert await world.cycle() is None
        assert await world.store.rounds() == []
        await world.set_bonded(True)
        assert await world.cycle() is not None


async def test_cycle__bond_gone__what_was_assigned_and_not_handed_out_stays_with_the_relayer() -> None:
    async with a_world() as world:
        (node,) = world.link.nodes.values()
        node.answer = ChainUnavailable("the link breaks")
        await world.post(world.request())
        await world.cycle()
        handed_out = len(node.tasks)
        await world.set_bonded(False)
        await world.cycle()
        assert len(node.tasks) == handed_out == 1


async def test_intake_and_poster__bond_gone__take_and_post_nothing() -> None:
    async with post_office() as made:
        waiting = await made.hand_in(made.request(salt=1))
        await made.world.set_bonded(False)
        with pytest.raises(NotBonded, match="ask another one"):
            await made.hand_in(made.request(salt=2))
        assert await made.poster.step() == 0
        assert made.sent() == 0
        await made.world.set_bonded(True)
        assert await made.poster.step() == 1
        assert (await made.the(waiting.request_id)).intent_state == "open"


async def test_poster__bond_gone_for_long__ends_with_the_reason() -> None:
    async with post_office() as made:
        posting = await made.hand_in(made.request())
        await made.world.set_bonded(False)
        await made.poster.step()
        made.world.clock.advance(240_000)
        await made.poster.step()
        ended = await made.the(posting.request_id)
        made.world.clock.advance(400_000)
        await made.poster.step()
        ended = await made.the(posting.request_id)
        assert ended.state is PostingState.UNPOSTED
        assert "bond does not count" in ended.reason


# Settling


async def test_settler__bond_gone__settles_what_a_recorded_round_owes() -> None:
    async with a_world(batching=AT_ONCE) as world:
        _, owed = await record_a_round_with_one_of_two(world)
        await world.set_bonded(False)
        await world.settle()
        assert await world.state(owed) == "fulfilled"
        assert intents_sent(world) == ["RoundRecorded", "ResultFulfilled", "ResultFulfilled"]


async def test_settler__bond_gone__what_needs_a_record_does_not_hold_up_the_rest() -> None:
    async with a_world(batching=BatchPolicy(max_items=1, max_age_ms=0)) as world:
        _, owed = await record_a_round_with_one_of_two(world)
        (unrecorded,) = await world.serve(world.request(salt=3))
        await world.set_bonded(False)
        for _ in range(3):
            await world.settle()
        assert await world.state(owed) == "fulfilled"
        assert await world.state(unrecorded) == "signed"
        assert not world.metrics.total("headrace_simulations_failed_total")
        await world.set_bonded(True)
        await world.settle()
        assert await world.state(unrecorded) == "fulfilled"


async def test_settler__bond_gone__an_open_race_waits_for_its_return() -> None:
    async with a_world(batching=AT_ONCE) as world:
        open_race = await record_a_round_but_for_an_open_race(world)
        await world.set_bonded(False)
        await world.settle()
        assert await world.state(open_race) == "signed"
        await world.set_bonded(True)
        await world.settle()
        assert await world.state(open_race) == "fulfilled"


async def test_settler__bond_goes_between_two_looks__an_open_race_is_not_set_aside_for_good() -> None:
    async with a_world(batching=AT_ONCE) as world:
        open_race = await record_a_round_but_for_an_open_race(world)
        world.chain.bonded.discard(world.signer.address)  # and nobody has looked
        await world.settle()
        assert world.metrics.counts[("headrace_items_left_out_total", "status=WRONG_RELAYER")] == 1
        await world.set_bonded(True)
        await world.settle()
        assert await world.state(open_race) == "fulfilled"


# Looking


@pytest.mark.looptime
async def test_run__bond_goes_and_comes_back__one_warning_each_and_unknown_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chain, metrics, rings = FakeChain(LoopClock()), FakeMetrics(), list[None]()
    bonding = Bonding(chain, metrics, RELAYER, lambda: rings.append(None), poll_ms=1_000)
    looking = asyncio.ensure_future(bonding.run())
    seen = []
    for change in ("none", "gone", "unknown", "none", "back", "none"):
        if change == "unknown":
            chain.fail("is_bonded", ChainUnavailable("no answer"))
        elif change != "none":
            (chain.bonded.discard if change == "gone" else chain.bonded.add)(RELAYER)
        await asyncio.sleep(1)
        seen.append(bonding.holds())
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    assert seen == [True, False, False, False, True, True]
    said = capsys.readouterr().out
    assert (said.count("bond_gone"), said.count("bond_back"), len(rings)) == (1, 1, 1)
    assert "headrace bond show" in said
    assert metrics.gauges[("headrace_relayer_bonded",)] == 1
