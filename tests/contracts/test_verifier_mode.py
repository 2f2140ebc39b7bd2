"""Verifier plug-ins: what `submitResults` does for requests that name one."""

from __future__ import annotations

from enum import IntEnum

import ape
import pytest
from eth_utils import keccak

from tests.contracts.builders import ItemStatus, Mode, Status, item
from tests.contracts.conftest import OTHER_NODE_KEY
from tests.contracts.world import _as_tuple

VERIFIER_GAS = 400_000
OK, FAILED = ItemStatus.OK, ItemStatus.VERIFICATION_FAILED
Behaviour = IntEnum("Behaviour", "HONEST WRONG_MAGIC SHORT_ANSWER REVERTS BURNS_ALL_GAS RETURNS_MUCH", start=0)


@pytest.fixture
def verifier(project, world):
    return world.stranger.deploy(project.TestVerifier)


def ask(world, verifier, **fields):
    return world.post(mode=Mode.VERIFIER, verifier=verifier.address, gasBudget=10**16, **fields)


def proof_of(world, verifier, posted, node=None, result_hash=None) -> bytes:
    result_hash = result_hash or item(posted).result_hash
    return bytes(verifier.proofOf(_as_tuple(posted.request), posted.id, node or world.node, result_hash))


def submit(world, posted, proofs, **kwargs):
    items = [item(p) for p in posted]
    return world.submit(world.set_of(items, world.record_round(), proofs=proofs), **kwargs)


def test_verifier__proof_of_this_very_result__is_paid(world, verifier):
    posted = ask(world, verifier)
    receipt = submit(world, [posted], [proof_of(world, verifier, posted)])
    assert world.statuses(receipt) == [[OK]]
    assert world.status_of(posted) == Status.FULFILLED
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert event.nodePaid + event.relayerPaid + event.refund == posted.escrow


def test_verifier__its_gas__is_paid_to_the_relayer(world, verifier):
    plain, verified = world.post(gasBudget=10**16), ask(world, verifier)
    receipt = submit(world, [plain, verified], [b"", proof_of(world, verifier, verified)])
    by_id = {event.requestId: event for event in receipt.decode_logs(world.market.ResultFulfilled)}
    more = by_id[verified.id].relayerPaid - by_id[plain.id].relayerPaid
    gas = more / 0.9 / world.gas_price_paid_for(receipt)
    assert 2_600 < gas < 30_000


@pytest.mark.parametrize("proof", ["none", "empty", "another request's", "another node's", "another result's"])
def test_verifier__proof_of_anything_else__verification_failed(world, verifier, proof, other_node):
    posted, other = ask(world, verifier), ask(world, verifier)
    proofs = {
        "none": [],
        "empty": [b""],
        "another request's": [proof_of(world, verifier, other)],
        "another node's": [proof_of(world, verifier, posted, node=other_node)],
        "another result's": [proof_of(world, verifier, posted, result_hash=keccak(b"another"))],
    }[proof]
    assert world.statuses(submit(world, [posted], proofs)) == [[FAILED]]
    assert world.status_of(posted) == Status.PENDING
    # Nothing is lost: with its proof it is paid.
    assert world.statuses(submit(world, [posted], [proof_of(world, verifier, posted)])) == [[OK]]


@pytest.mark.parametrize(
    "behaviour", [Behaviour.WRONG_MAGIC, Behaviour.SHORT_ANSWER, Behaviour.REVERTS, Behaviour.BURNS_ALL_GAS]
)
def test_verifier__misbehaves__verification_failed_and_the_others_are_paid(world, verifier, behaviour):
    verifier.set(behaviour, sender=world.stranger)
    posted, plain = ask(world, verifier), world.post()
    receipt = submit(world, [posted, plain], [proof_of(world, verifier, posted), b""])
    assert world.statuses(receipt) == [[FAILED, OK]]
    assert receipt.gas_used < VERIFIER_GAS + 200_000


def test_verifier__answers_much__one_word_is_read(world, verifier):
    verifier.set(Behaviour.RETURNS_MUCH, sender=world.stranger)
    posted = ask(world, verifier)
    receipt = submit(world, [posted], [b""])
    assert world.statuses(receipt) == [[OK]]
    assert receipt.gas_used < 350_000


def test_verifier__code_is_gone__verification_failed(world, verifier):
    """A call to an account without code succeeds and says nothing."""
    posted = ask(world, verifier)
    proof = proof_of(world, verifier, posted)
    world.provider.make_request("anvil_setCode", [verifier.address, "0x"])
    assert world.statuses(submit(world, [posted], [proof])) == [[FAILED]]


@pytest.mark.parametrize("limit", range(200_000, 620_000, 30_000))
def test_verifier__submitter_gives_too_little_gas__all_reverts_or_it_is_asked_in_earnest(world, verifier, limit):
    """Else a submitter could have good results refused."""
    posted = ask(world, verifier)
    result_set = world.set_of([item(posted)], world.record_round(), proofs=[proof_of(world, verifier, posted)])
    try:
        receipt = world.submit(result_set, gas_limit=limit)
    except ape.exceptions.ContractLogicError:
        assert world.status_of(posted) == Status.PENDING
    else:
        assert world.statuses(receipt) == [[OK]]


def test_verifier__result_signed_by_another__bad_signature(world, verifier, other_node):
    posted = ask(world, verifier)
    result_set = world.set_of([item(posted)], world.record_round(), proofs=[proof_of(world, verifier, posted)])
    forged = world.set_of([item(posted)], 1, key=OTHER_NODE_KEY).build()["signatures"]
    assert world.statuses(world.submit(result_set.build() | {"signatures": forged})) == [[ItemStatus.BAD_SIGNATURE]]


def test_verifier__proofs_of_another_number__malformed_set(world, verifier):
    posted = ask(world, verifier)
    with ape.reverts(world.market.MalformedSet, setIndex=0):
        submit(world, [posted], [b"", b""])


def test_verifier__bytes_that_were_not_asked_for__bad_result(world, verifier):
    posted = ask(world, verifier)
    result_set = world.set_of(
        [item(posted, inline=True)], world.record_round(), proofs=[proof_of(world, verifier, posted)]
    )
    assert world.statuses(world.submit(result_set)) == [[ItemStatus.BAD_RESULT]]
