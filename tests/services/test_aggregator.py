"""What nodes say, and what is believed of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import InvalidInput, NotAllowed, SignatureMismatch
from headrace.core.tasks import Delivery, Refusal, RefusalReason
from headrace.core.types import ZERO_ADDRESS
from tests.services.world import FakeNode, World, a_world


async def _computing(world: World, **changes: object) -> tuple[str, FakeNode]:
    (id_,) = await world.post(world.request(**changes))
    await world.cycle()
    (node,) = (node for node in world.link.nodes.values() if node.tasks)
    return id_, node


async def test_delivered__good_result__is_signed_and_kept() -> None:
    async with a_world() as world:
        id_, node = await _computing(world)
        delivery = node.deliver(node.tasks[0])
        await world.aggregator.delivered(delivery)
        assert await world.state(id_) == "signed"
        stored = await world.store.result(id_)
        assert stored is not None
        assert await world.store.payload(stored.payload_hash) == delivery.payload
        assert (await world.store.assignments(id_))[0].state == "delivered"


async def test_delivered__twice__is_one_result() -> None:
    async with a_world() as world:
        id_, node = await _computing(world)
        for _ in range(2):
            await world.aggregator.delivered(node.deliver(node.tasks[0]))
        assert len(await world.store.ready_results(10)) == 1
        assert world.metrics.total("headrace_results_total") == 1
        assert await world.state(id_) == "signed"


async def test_delivered__two_different_results__the_second_is_an_equivocation() -> None:
    async with a_world() as world:
        _, node = await _computing(world)
        await world.aggregator.delivered(node.deliver(node.tasks[0]))
        with pytest.raises(InvalidInput, match="equivocation"):
            await world.aggregator.delivered(node.deliver(node.tasks[0], salt=8))


def _wrong_reward(delivery: Delivery) -> Delivery:
    return replace(delivery, result=replace(delivery.result, reward_wei=delivery.result.reward_wei + 1))


def _wrong_round(delivery: Delivery) -> Delivery:
    return replace(delivery, result=replace(delivery.result, round=9))


def _wrong_bytes(delivery: Delivery) -> Delivery:
    return replace(delivery, payload=delivery.payload + b"!")


def _empty(delivery: Delivery) -> Delivery:
    return replace(delivery, payload=b"")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_wrong_reward, "another relayer, round or reward"),
        (_wrong_round, "another relayer, round or reward"),
        (_wrong_bytes, "do not have the hash"),
        (_empty, "1 to"),
    ],
)
async def test_delivered__not_as_assigned__is_refused(spoil: object, message: str) -> None:
    async with a_world() as world:
        id_, node = await _computing(world)
        with pytest.raises(InvalidInput, match=message):
            await world.aggregator.delivered(spoil(node.deliver(node.tasks[0])))  # type: ignore[operator]
        assert await world.state(id_) == "computing"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
async def test_delivered__no_text_in_the_envelope__is_refused(content: bytes) -> None:
    async with a_world() as world:
        id_, node = await _computing(world)
        with pytest.raises(InvalidInput, match="UTF-8 text, and not empty"):
            await world.aggregator.delivered(node.deliver(node.tasks[0], content))
        assert await world.state(id_) == "computing"


async def test_delivered__signed_by_another_key__is_refused() -> None:
    async with a_world() as world:
        _, node = await _computing(world)
        delivery = replace(node.deliver(node.tasks[0]), signature=world.signer.sign_digest(bytes(32)))
        with pytest.raises(SignatureMismatch):
            await world.aggregator.delivered(delivery)


async def test_delivered__bare_answer_to_a_private_request__is_refused() -> None:
    async with a_world() as world:
        _, node = await _computing(world)
        task = node.tasks[0]
        public = replace(task, request=replace(task.request, inline_result=True))
        with pytest.raises(InvalidInput, match="envelope"):
            await world.aggregator.delivered(node.deliver(public))


async def test_delivered__after_another_node_was_assigned__is_refused() -> None:
    async with a_world(nodes=2) as world:
        id_, node = await _computing(world)
        await world.aggregator.gave_up(node.key, Refusal(id_, 1, RefusalReason.BACKEND_FAILED, "out of memory"))
        assert await world.state(id_) == "eligible"
        assert world.metrics.counts[("headrace_assignments_total", "outcome=failed")] == 1
        await world.cycle()
        with pytest.raises(InvalidInput, match="not assigned to"):
            await world.aggregator.delivered(node.deliver(node.tasks[0]))


async def test_delivered__late_but_nobody_else_has_it__is_taken() -> None:
    async with a_world() as world:
        id_, node = await _computing(world)
        world.clock.advance(60_000)
        await world.cycle()
        assert await world.state(id_) == "eligible"
        await world.aggregator.delivered(node.deliver(node.tasks[0]))
        assert await world.state(id_) == "signed"


async def test_delivered__request_is_closed_already__is_acknowledged_and_dropped() -> None:
    async with a_world() as world:
        id_, node = await _computing(world)
        world.chain.mine(world.chain.fulfilled(id_))
        await world.index()
        await world.aggregator.delivered(node.deliver(node.tasks[0]))
        assert await world.store.result(id_) is None


async def test_delivered__unknown_request__is_refused() -> None:
    async with a_world() as world:
        _, node = await _computing(world)
        delivery = node.deliver(node.tasks[0])
        with pytest.raises(InvalidInput, match="not known here"):
            await world.aggregator.delivered(
                replace(delivery, result=replace(delivery.result, request_id="0x" + "77" * 32))
            )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owner": ZERO_ADDRESS}, "not a registered node"),
        ({"is_active": False}, "add stake"),
        ({"payee": ZERO_ADDRESS}, "its owner must join it"),
        ({"payee": ZERO_ADDRESS, "is_active": False, "retired_at_s": 5}, "the keystore of its new key"),
    ],
)
async def test_admit__not_fit_to_serve__says_what_to_do(changes: dict[str, object], message: str) -> None:
    async with a_world() as world:
        (key,) = world.link.nodes
        await world.aggregator.admit(key)
        world.chain.facts[key] = replace(world.chain.facts[key], **changes)
        with pytest.raises(NotAllowed, match=message):
            await world.aggregator.admit(key)


async def test_admit__key_that_was_rotated_away_and_is_still_paid__may_deliver() -> None:
    async with a_world() as world:
        (key,) = world.link.nodes
        world.chain.facts[key] = replace(world.chain.facts[key], is_active=False, retired_at_s=5)
        await world.aggregator.admit(key)
