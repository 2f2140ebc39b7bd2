"""A node whose remote signer is gone: it promises nothing, goes on computing, and delivers when the signer is back."""

from __future__ import annotations

import asyncio

from headrace.core.errors import SignerUnavailable
from headrace.core.tasks import Accept, Refusal, RefusalReason
from headrace.core.typed_data import Domain, digest, hash_result, require_signer
from tests.fakes import FakeSigner
from tests.node.world import DEADLINE_S, DOMAIN, NODE_KEY, World, make_task


class FarSigner(FakeSigner):
    """A key that is gone when it is told."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.is_gone = False
        self.refused = asyncio.Event()

    async def sign_typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        if self.is_gone:
            self.refused.set()
            raise SignerUnavailable("the signer does not answer")
        return await super().sign_typed(domain, struct_hash)


def far() -> FarSigner:
    """The node's key, far away."""
    return FarSigner(int.from_bytes(NODE_KEY._key.to_bytes(), "big"))


async def test_task__is_refused_in_words__and_taken_when_it_is_back(world: World) -> None:
    signer = far()
    async with world.serving() as link, world.node(signer=signer, heartbeat_interval_s=60.0):
        await world.linked()
        signer.is_gone = True
        answer = await link.dispatch(make_task(), DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert (answer.reason, answer.message) == (
            RefusalReason.BACKEND_UNAVAILABLE,
            "the signer does not answer",
        )
        assert world.backend.calls == []
        signer.is_gone = False
        assert isinstance(await link.dispatch(make_task(salt=2), DEADLINE_S), Accept)
        await world.delivered()


async def test_heartbeat__is_left_out__and_the_link_stands(world: World) -> None:
    signer = far()
    async with world.serving() as link, world.node(signer=signer, heartbeat_interval_s=0.01) as node:
        first = await world.linked()
        signer.is_gone = True
        await asyncio.wait_for(signer.refused.wait(), DEADLINE_S)
        assert link.linked()[0].heartbeat.sequence >= first.heartbeat.sequence
        signer.is_gone = False
        await world.bell.until(lambda: link.linked()[0].heartbeat.sequence > first.heartbeat.sequence + 1)
        assert not node.running.done()


async def test_result__is_computed_all_the_same__and_delivered_when_it_is_back(world: World) -> None:
    signer, task = far(), make_task()
    world.backend.gate.clear()
    async with world.serving() as link, world.node(signer=signer, heartbeat_interval_s=60.0) as node:
        await world.linked()
        assert isinstance(await link.dispatch(task, DEADLINE_S), Accept)
        signer.is_gone = True
        signer.refused.clear()
        world.backend.gate.set()
        await asyncio.wait_for(signer.refused.wait(), DEADLINE_S)
        assert world.events.deliveries == []
        entry = await node.journal.entry(task.assignment.request_id)
        assert entry is not None and entry.result is not None
        signer.is_gone = False
        delivery = await world.delivered()
        require_signer(signer.address, digest(DOMAIN, hash_result(delivery.result)), delivery.signature, "result")
        assert len(world.backend.calls) == 1


async def test_set__is_not_signed__and_the_link_stands(world: World) -> None:
    signer = far()
    async with world.serving() as link, world.node(signer=signer, heartbeat_interval_s=60.0):
        await world.linked()
        await link.dispatch(make_task(), DEADLINE_S)
        delivery = await world.delivered()
        signer.is_gone = True
        assert await link.sign_set(signer.address, 3, [delivery.result], DEADLINE_S) is None
        signer.is_gone = False
        assert await link.sign_set(signer.address, 3, [delivery.result], DEADLINE_S)
