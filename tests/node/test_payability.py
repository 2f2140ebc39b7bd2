"""A node asks the chain before it gives its word: what is not there, not payable or not known is not accepted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.core.errors import ChainUnavailable
from headrace.core.tasks import Accept, Refusal, RefusalReason, Task
from headrace.core.types import ZERO_ADDRESS, Mode, Status
from headrace.node.payability import PayabilitySettings
from tests.node.world import DEADLINE_S, MODEL, NODE_KEY, World, make_task, member

NODE = NODE_KEY.address
ID = make_task().assignment.request_id


async def answer_to(world: World, task: Task) -> Accept | Refusal:
    async with world.serving() as link, world.node():
        await world.linked()
        return await link.dispatch(task, DEADLINE_S)


async def refusal_of(world: World, task: Task) -> Refusal:
    answer = await answer_to(world, task)
    assert isinstance(answer, Refusal)
    assert not world.backend.calls
    return answer


@pytest.mark.parametrize("status", [Status.FULFILLED, Status.EXPIRED, Status.CANCELLED])
async def test_task__request_is_closed__refused_at_once(world: World, status: Status) -> None:
    world.payability = PayabilitySettings(posting_wait_s=DEADLINE_S * 2)
    world.chain.not_pending[ID] = status
    refusal = await refusal_of(world, make_task())
    assert refusal.reason is RefusalReason.UNPAYABLE
    assert status.name.lower() in refusal.message


async def test_task__request_is_not_on_the_chain__refused_after_a_wait(world: World) -> None:
    world.chain.not_pending[ID] = Status.NONE
    refusal = await refusal_of(world, make_task())
    assert refusal.reason is RefusalReason.UNPAYABLE
    assert "did not come within 0.2 s" in refusal.message
    assert world.chain.calls["pending"] > 1


async def test_task__request_comes_to_the_chain_meanwhile__accepted_and_nobody_waited_with_it(world: World) -> None:
    world.payability = PayabilitySettings(posting_wait_s=DEADLINE_S, poll_s=0.005)
    world.chain.not_pending[ID] = Status.NONE
    async with world.serving() as link, world.node(max_in_flight=2):
        await world.linked()
        waiting = asyncio.ensure_future(link.dispatch(make_task(), DEADLINE_S))
        await world.bell.until(lambda: world.chain.calls["pending"])
        assert isinstance(await link.dispatch(make_task(salt=2), DEADLINE_S), Accept)
        assert not waiting.done()
        del world.chain.not_pending[ID]
        assert isinstance(await waiting, Accept)


async def test_task__request_was_cancelled__refused(world: World) -> None:
    task = make_task()
    world.chain.effective_deadlines[ID] = task.assignment.deadline_s - 1
    assert "cancelled" in (await refusal_of(world, task)).message


@pytest.mark.parametrize("mode", [{}, {"mode": Mode.QUORUM, "k": 2, "n": 3}, {"is_open": True}])
async def test_task__relayer_without_a_bond__refused_in_every_mode(world: World, mode: dict[str, Any]) -> None:
    world.chain.bonded.clear()
    refusal = await refusal_of(world, make_task(**mode))
    assert (refusal.reason, "has no bond" in refusal.message) == (RefusalReason.UNPAYABLE, True)


async def test_task__reward_above_probations_cap__refused_until_the_node_is_past_it(world: World) -> None:
    high = {"word": {"reward_wei": 2 * 10**15}, "max_reward_wei": 10**16}
    world.chain.facts[NODE] = member(NODE, settled_count=9)
    async with world.serving() as link, world.node():
        await world.linked()
        answer = await link.dispatch(make_task(**high), DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert "on probation" in answer.message
        # The relayer may know of the tenth result before what the node has read is old.
        world.chain.facts[NODE] = member(NODE, settled_count=10)
        assert isinstance(await link.dispatch(make_task(**high, salt=2), DEADLINE_S), Accept)


async def test_task__node_left_the_market__refused(world: World) -> None:
    world.chain.facts[NODE] = member(NODE, payee=ZERO_ADDRESS)
    assert "join it" in (await refusal_of(world, make_task())).message


async def test_task__settling_alone_would_not_pay__refused(world: World) -> None:
    poor = {"gas_budget_wei": 0, "priority_fee_wei": 0, "word": {"reward_wei": 2 * 10**12}}
    assert "without the relayer would bring in" in (await refusal_of(world, make_task(**poor))).message


@pytest.mark.parametrize("method", ["head", "node_facts", "is_bonded", "gas_quote", "pending"])
async def test_task__chain_does_not_answer__refused_and_nothing_is_offered_until_it_does(
    world: World, method: str
) -> None:
    async with world.serving() as link, world.node():
        await world.linked()
        world.chain.fail(method, *[ChainUnavailable("the endpoint is down")] * 50)
        world.chain.fail("head", *[ChainUnavailable("the endpoint is down")] * 50)
        answer = await link.dispatch(make_task(), DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.CHAIN_UNAVAILABLE
        assert "is not known: the endpoint is down" in answer.message
        await world.bell.until(lambda: link.linked()[0].heartbeat.models == ())
        world.chain._failures.clear()
        await world.bell.until(lambda: link.linked()[0].heartbeat.models == (MODEL.model_id,))
        assert isinstance(await link.dispatch(make_task(salt=2), DEADLINE_S), Accept)


async def test_task__chain_hangs__refused_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.payability = PayabilitySettings(read_timeout_s=0.02)

    async def hang(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.chain, "pending", hang)
    refusal = await refusal_of(world, make_task())
    assert (refusal.reason, "within 0.02 s" in refusal.message) == (RefusalReason.CHAIN_UNAVAILABLE, True)


async def test_tasks__many__the_chain_is_asked_for_what_changes_slowly_once(world: World) -> None:
    async with world.serving() as link, world.node(max_in_flight=10):
        await world.linked()
        tasks = [make_task(salt=salt) for salt in range(8)]
        answers = await asyncio.gather(*(link.dispatch(task, DEADLINE_S) for task in tasks))
        assert all(isinstance(answer, Accept) for answer in answers)
        names = ("pending", "statuses", "head", "node_facts", "is_bonded", "gas_quote")
        assert [world.chain.calls[name] for name in names] == [8, 0, 1, 1, 1, 1]
        world.clock.advance(5_001)
        world.chain.bonded.clear()
        assert isinstance(await link.dispatch(make_task(salt=9), DEADLINE_S), Refusal)


async def test_task__same_again__is_not_asked_about_again(world: World) -> None:
    async with world.serving() as link, world.node():
        await world.linked()
        first = await link.dispatch(make_task(), DEADLINE_S)
        world.chain.bonded.clear()
        world.clock.advance(60_000)
        assert await link.dispatch(make_task(), DEADLINE_S) == first
        assert world.chain.calls["pending"] == 1
