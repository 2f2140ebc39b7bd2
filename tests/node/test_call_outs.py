"""What a node does for requests whose answer goes to a contract: proofs for verifiers, bounds for callbacks."""

from __future__ import annotations

import pytest

from headrace.core.gas import required_answer_bytes
from headrace.core.tasks import Accept, Refusal, RefusalReason
from headrace.core.typed_data import ATTESTED_KEY_VERIFIER, Domain, digest, hash_attestation, require_signer
from headrace.core.types import Mode
from headrace.node.attester import Attester
from tests.fakes import VERIFIER, FakeSigner
from tests.node.world import CHAIN_ID, DEADLINE_S, NODE_KEY, World, make_task

ATTESTATION_KEY = FakeSigner(33)
ATTESTER = Attester(ATTESTATION_KEY, CHAIN_ID, VERIFIER)
VERIFIED = {"mode": Mode.VERIFIER, "verifier": VERIFIER}


async def test_a_verified_request__is_answered_with_a_proof_of_the_result(world: World) -> None:
    task = make_task(**VERIFIED)
    async with world.serving() as link, world.node(attester=ATTESTER) as node:
        linked = await world.linked()
        assert linked.heartbeat.verifiers == (VERIFIER,)
        assert isinstance(await link.dispatch(task, DEADLINE_S), Accept)
        delivery = await world.delivered()
        entry = await node.journal.entry(task.assignment.request_id)
    attestation = hash_attestation(task.assignment.request_id, NODE_KEY.address, delivery.result.result_hash)
    signed = digest(Domain(CHAIN_ID, VERIFIER, ATTESTED_KEY_VERIFIER), attestation)
    require_signer(ATTESTATION_KEY.address, signed, delivery.proof, "attestation")
    assert entry is not None
    assert entry.proof == delivery.proof


async def test_a_proof__is_delivered_from_the_journal_after_a_restart(world: World) -> None:
    task = make_task(**VERIFIED)
    async with world.serving() as link:
        world.events.delivered_error = RuntimeError("the store is full")
        async with world.node(attester=ATTESTER):
            await world.linked()
            await link.dispatch(task, DEADLINE_S)
            first = await world.delivered()
        world.events.delivered_error = None
        count = len(world.events.deliveries)
        # The key is another one now; what was proven stays proven.
        async with world.node(attester=Attester(FakeSigner(34), CHAIN_ID, VERIFIER)):
            again = await world.delivered(count + 1)
    assert again.proof == first.proof
    assert len(world.backend.calls) == 1


async def test_a_request_without_a_verifier__gets_no_proof(world: World) -> None:
    async with world.serving() as link, world.node(attester=ATTESTER):
        await world.linked()
        await link.dispatch(make_task(), DEADLINE_S)
        assert (await world.delivered()).proof == b""


@pytest.mark.parametrize("attester", [None, Attester(ATTESTATION_KEY, CHAIN_ID, "0x" + "5e" * 20)])
async def test_a_verifier_that_the_node_has_no_key_for__is_refused(world: World, attester: Attester | None) -> None:
    async with world.serving() as link, world.node(attester=attester):
        await world.linked()
        answer = await link.dispatch(make_task(**VERIFIED), DEADLINE_S)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.BAD_ASSIGNMENT
    assert f"cannot prove its answer to the verifier {VERIFIER}" in answer.message


async def test_a_callback_whose_answer_may_be_too_long_for_a_transaction__is_refused(world: World) -> None:
    task = make_task(inline_result=True, callback_gas=1, max_output_tokens=20_000, max_reward_wei=10**18)
    async with world.serving() as link, world.node():
        await world.linked()
        answer = await link.dispatch(task, DEADLINE_S)
    assert isinstance(answer, Refusal)
    assert "too long for a transaction" in answer.message


async def test_a_callback_whose_answer_is_longer_than_is_paid_for__ends_early(world: World) -> None:
    """Else whoever asks for it could have each node that accepts punished for a miss."""
    task = make_task(inline_result=True, callback_gas=100_000)
    most = required_answer_bytes(task.request)
    world.backend.text = "x" * (most + 1)
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(task, DEADLINE_S)
        assert (await world.delivered()).payload == b"x" * most


async def test_a_callback_whose_answer_just_fits__is_delivered(world: World) -> None:
    task = make_task(inline_result=True, callback_gas=100_000)
    world.backend.text = "x" * required_answer_bytes(task.request)
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(task, DEADLINE_S)
        assert (await world.delivered()).payload == world.backend.text.encode()
