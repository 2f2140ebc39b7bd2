"""A node of a quorum: listed again, it signs what it has for the newer round, and computes nothing twice (I26, I27)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.envelope import content_of, hash_payload, quorum_salt, seal
from headrace.core.errors import BackendUnavailable
from headrace.core.tasks import Accept, Refusal, RefusalReason, Task
from headrace.core.typed_data import digest, hash_accept, hash_result, require_signer
from headrace.core.types import Mode
from tests.fakes import FakeSigner
from tests.node.world import DEADLINE_S, DOMAIN, NODE_KEY, RELAYER_KEY, World, make_task

NODE, RELAYER = NODE_KEY.address, RELAYER_KEY.address
PROMPT = seal(b"Why is the sky blue?", b"s" * 16)


def quorum_task(round_: int = 3, reward_wei: int = 10**14, **changes: Any) -> Task:
    """The same request whatever the round."""
    word = {"round": round_, "reward_wei": reward_wei, **changes.pop("word", {})}
    return make_task(**{"prompt": PROMPT, "mode": Mode.QUORUM, "k": 2, "n": 3, "word": word, **changes})


async def accepted(world: World, task: Task) -> None:
    """The node's word for a task, signed for its round."""
    word = task.assignment
    accept = await world.link.dispatch(task, DEADLINE_S)
    assert isinstance(accept, Accept), accept
    promise = hash_accept(word.request_id, RELAYER, word.round, word.deadline_s)
    require_signer(word.node, digest(DOMAIN, promise), accept.signature, "accept")


async def refused(world: World, task: Task) -> Refusal:
    refusal = await world.link.dispatch(task, DEADLINE_S)
    assert isinstance(refusal, Refusal)
    assert refusal.round == task.assignment.round
    return refusal


async def test_listed_again_after_its_answer__signs_the_same_hash_for_the_newer_round(world: World) -> None:
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task())
        first = await world.delivered()
        await accepted(world, quorum_task(round_=5, reward_wei=2 * 10**14))
        second = await world.delivered(2)
    assert (first.result.round, second.result.round) == (3, 5)
    assert (first.result.reward_wei, second.result.reward_wei) == (10**14, 2 * 10**14)
    assert first.result.result_hash == second.result.result_hash == hash_payload(second.payload)
    require_signer(NODE, digest(DOMAIN, hash_result(second.result)), second.signature, "result")
    assert len(world.backend.calls) == 1


async def test_listed_again_while_it_computes__answers_for_the_newer_round_only(world: World) -> None:
    world.backend.gate.clear()
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task())
        await world.bell.until(lambda: world.backend.calls)
        await accepted(world, quorum_task(round_=4, reward_wei=3 * 10**14))
        world.backend.gate.set()
        delivery = await world.delivered()
    assert (delivery.result.round, delivery.result.reward_wei) == (4, 3 * 10**14)
    assert len(world.backend.calls) == 1
    assert [each.result.round for each in world.events.deliveries] == [4]


async def test_listed_again_after_a_restart__has_its_answer_still(world: World) -> None:
    async with world.serving():
        async with world.node():
            await world.linked()
            await accepted(world, quorum_task())
            first = await world.delivered()
        await world.bell.until(lambda: world.linked_now() is None)
        async with world.node():
            await world.linked()
            await accepted(world, quorum_task(round_=4))
            of_it = await world.bell.until(lambda: [each for each in world.events.deliveries if each.result.round == 4])
            second = of_it[0]
    assert second.result.result_hash == first.result.result_hash
    assert second.payload == first.payload
    assert len(world.backend.calls) == 1


async def test_killed_while_it_computes_for_the_newer_round__goes_on_for_that_round(world: World) -> None:
    world.backend.gate.clear()
    async with world.serving():
        async with world.node():
            await world.linked()
            await accepted(world, quorum_task())
            await accepted(world, quorum_task(round_=4))
        world.backend.gate.set()
        async with world.node():
            delivery = await world.delivered()
    assert delivery.result.round == 4


async def test_older_round_comes_late__is_refused_and_the_newer_stands(world: World) -> None:
    world.backend.gate.clear()
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task(round_=4))
        refusal = await refused(world, quorum_task(round_=3))
        assert (refusal.reason, "round 4" in refusal.message) == (RefusalReason.BAD_ASSIGNMENT, True)
        world.backend.gate.set()
        assert (await world.delivered()).result.round == 4


async def test_newer_round_of_a_request_without_quorum__is_refused(world: World) -> None:
    """Nobody needs it: another node would have the request."""
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, make_task())
        await world.delivered()
        assert (await refused(world, make_task(word={"round": 9}))).reason is RefusalReason.BAD_ASSIGNMENT


@pytest.mark.parametrize(
    ("task", "reason", "says"),
    [
        pytest.param(quorum_task(5, reward_wei=2 * 10**12 - 1), "reward_too_low", "asks for", id="reward"),
        pytest.param(quorum_task(5, reward_wei=10**15 // 2 + 1), "bad_assignment", "more than", id="k rewards"),
    ],
)
async def test_newer_round_that_is_not_as_it_must_be__is_refused(
    world: World, task: Task, reason: str, says: str
) -> None:
    world.backend.gate.clear()
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task())
        refusal = await refused(world, task)
        assert (refusal.reason, says in refusal.message) == (RefusalReason(reason), True), refusal.message
        world.backend.gate.set()
        assert (await world.delivered()).result.round == 3


async def test_gives_up_after_it_was_listed_again__names_the_newer_round(world: World) -> None:
    world.backend.gate.clear()
    world.backend.error = BackendUnavailable("it is down")
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task())
        await accepted(world, quorum_task(round_=4))
        world.backend.gate.set()
        await world.bell.until(lambda: world.events.gave_ups)
    ((node, refusal),) = world.events.gave_ups
    assert (node, refusal.round, refusal.reason) == (NODE, 4, RefusalReason.BACKEND_UNAVAILABLE)


async def test_two_nodes__come_to_the_same_bytes(world: World) -> None:
    """The salt of an answer is not random: who has the prompt can derive it, and nobody else."""
    other = FakeSigner(23)
    async with world.serving(), world.node(), world.node(signer=other):
        await world.linked()
        await world.linked(other.address)
        task = quorum_task()
        await accepted(world, task)
        await accepted(world, quorum_task(word={"node": other.address}))
        await world.delivered(2)
    one, two = world.events.deliveries
    assert one.node != two.node
    assert one.payload == two.payload
    assert content_of(one.payload) == b"Rayleigh scattering."
    salt = quorum_salt(task.assignment.request_id, PROMPT)
    assert one.payload == seal(b"Rayleigh scattering.", salt)
    assert quorum_salt(quorum_task(salt=2).assignment.request_id, PROMPT) != salt
    assert quorum_salt(task.assignment.request_id, seal(b"Why is the sky blue?", b"t" * 16)) != salt


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('"seed":7', "temperature"),
        ('"temperature":1,"seed":7', "temperature"),
        ('"temperature":0', "seed"),
    ],
)
async def test_prompt_that_leaves_the_answer_open__is_refused(world: World, options: str, says: str) -> None:
    prompt = f'{{"messages":[{{"role":"user","content":"Hi"}}],{options}}}'.encode()
    async with world.serving(), world.node():
        await world.linked()
        refusal = await refused(world, quorum_task(prompt=prompt))
        assert (refusal.reason, says in refusal.message) == (RefusalReason.BAD_PROMPT, True)
        assert world.backend.calls == []


async def test_prompt_that_fixes_the_answer__is_taken(world: World) -> None:
    prompt = b'{"messages":[{"role":"user","content":"Hi"}],"temperature":0,"seed":7}'
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task(prompt=prompt))
        await world.delivered()
    assert world.backend.calls[0][1] == {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0,
        "seed": 7,
    }


async def test_newer_round_after_the_deadline__is_refused(world: World) -> None:
    async with world.serving(), world.node():
        await world.linked()
        await accepted(world, quorum_task())
        await world.delivered()
        world.clock.advance(3_600_000)
        refusal = await refused(world, quorum_task(round_=4))
        assert refusal.reason is RefusalReason.DEADLINE_INFEASIBLE
