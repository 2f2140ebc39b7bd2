from __future__ import annotations

import ape
import pytest

from tests.contracts import builders
from tests.contracts.builders import GRACE, GWEI, ZERO, ItemStatus, Mode, Status, item
from tests.contracts.conftest import OTHER_NODE_KEY
from tests.contracts.world import _as_tuple

ROUND = 5  # that nobody recorded


class Way:
    """A node's way out: the relayer's signed assignment, and its own signed result."""

    def __init__(self, world, posted=None, relayer=None, relayer_key=None, **item_changes) -> None:
        self.world = world
        self.posted = posted or world.post()
        self.relayer, self.relayer_key = relayer or world.relayer, relayer_key or world.relayer_key
        self.item = item(self.posted).with_(**item_changes)
        self.assignment = builders.assignment(self.item, self.relayer.address, world.node, ROUND, self.posted.deadline)
        self.set = world.set_of([self.item], ROUND, relayer=self.relayer.address)
        self.signed = None  # what the relayer signed, when not `assignment`
        self.contract = world.market.address

    def to_window(self) -> Way:
        self.world.next_block_at(self.world.deadline_of(self.posted) + 1)
        return self

    def submit(self, sender=None, built=None):
        signed = self.signed or self.assignment
        signature = builders.sign(self.relayer_key, self.contract, "Assignment", signed)
        return self.world.market.submitAssigned(
            _as_tuple(self.assignment),
            signature,
            _as_tuple(built or self.set.build()),
            sender=sender or self.world.stranger,
        )

    def refused(self, status: ItemStatus):
        return ape.reverts(self.world.market.ItemRefused, requestId=self.posted.id, status=status)


def test_submit_assigned__after_the_deadline__node_has_the_relayers_part_too(world):
    way = Way(world).to_window()
    receipt = way.submit()
    assert world.status_of(way.posted) == Status.FULFILLED
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    shares = builders.shares(way.posted, way.item.reward, world.gas_terms.assigned, world.gas_price_paid_for(receipt))
    assert (event.nodePaid, event.relayerPaid, event.refund) == (shares.node, shares.relayer, shares.refund)
    assert world.credit(world.node_owner) == shares.node + shares.relayer
    assert world.credit(world.relayer) == world.credit(world.stranger) == 0
    assert world.credit(world.requester) == shares.refund
    assert world.settled_count(world.node_owner) == 1
    (settled,) = receipt.decode_logs(world.market.BatchSettled)
    assert (settled.relayer, settled.round, settled.nodes) == (world.relayer.address, ROUND, [world.node])
    assert settled.statuses == bytes([ItemStatus.OK])


def test_submit_assigned__settled__its_reference_is_the_assignments(world):
    way = Way(world).to_window()
    way.submit()
    ref = {
        "resultHash": way.item.result_hash,
        "relayer": world.relayer.address,
        "round": ROUND,
        "nodes": [world.node],
        "settledAt": world.now,
    }
    assert world.market.verifyResult(way.posted.id, ref, b"")


@pytest.mark.parametrize(
    ("after", "fate"), [(0, ItemStatus.NO_ROUND), (1, None), (GRACE, None), (GRACE + 1, ItemStatus.LATE)]
)
def test_submit_assigned__window__is_from_the_deadline_to_the_end_of_grace(world, after, fate):
    way = Way(world)
    world.next_block_at(way.posted.deadline + after)
    if fate is None:
        way.submit()
        assert world.status_of(way.posted) == Status.FULFILLED
    else:
        with way.refused(fate):
            way.submit()


def test_submit_assigned__cancelled_at_the_last_moment__node_is_paid(world):
    """The answer was there and its round not yet recorded: the assignment holds all the same."""
    way = Way(world)
    world.market.cancel(way.posted.request, sender=world.requester)
    with way.refused(ItemStatus.NO_ROUND):
        world.next_block_at(world.deadline_of(way.posted))  # the same second
        way.submit()
    way.to_window().submit()
    assert world.status_of(way.posted) == Status.FULFILLED


def test_submit_assigned__inline_bytes__are_delivered(world):
    posted = world.post(inlineResult=True)
    way = Way(world, posted, result=b"an answer to " + posted.id).to_window()
    receipt = way.submit()
    assert receipt.decode_logs(world.market.ResultDelivered)[0].result == b"an answer to " + posted.id


def test_submit_assigned__verifier__is_asked(world, project):
    verifier = world.stranger.deploy(project.TestVerifier)
    posted = world.post(mode=Mode.VERIFIER, verifier=verifier.address)
    way = Way(world, posted).to_window()
    with way.refused(ItemStatus.VERIFICATION_FAILED):
        way.submit()
    way.set.proofs = [bytes(verifier.proofOf(_as_tuple(posted.request), posted.id, world.node, way.item.result_hash))]
    world.next_block_at(world.now + 1)
    way.submit()
    assert world.status_of(posted) == Status.FULFILLED


# WHAT IS REFUSED


def test_submit_assigned__again__already_done(world):
    way = Way(world).to_window()
    way.submit()
    with way.refused(ItemStatus.ALREADY_DONE):
        way.submit()


def test_submit_assigned__after_the_relayer_settled__already_done(world):
    way = Way(world)
    world.settle(way.posted)
    with way.refused(ItemStatus.ALREADY_DONE):
        way.submit()


def test_submit_assigned__request_that_nobody_made__unknown(world):
    posted = world.prepare()
    way = Way(world, posted)
    with way.refused(ItemStatus.UNKNOWN):
        way.submit()


def test_submit_assigned__not_signed_by_its_relayer__invalid_signature(world):
    way = Way(world, relayer_key=world.node_key).to_window()
    with ape.reverts(world.market.InvalidSignature, signer=world.relayer.address):
        way.submit()


def test_submit_assigned__signed_for_another_contract__invalid_signature(world):
    way = Way(world).to_window()
    way.contract = world.log.address
    with ape.reverts(world.market.InvalidSignature, signer=world.relayer.address):
        way.submit()


@pytest.mark.parametrize("field", ["reward", "round", "deadline", "node"])
def test_submit_assigned__another_assignment_than_was_signed__is_refused(world, field):
    way = Way(world).to_window()
    way.signed = way.assignment | {field: world.stranger.address if field == "node" else way.assignment[field] + 1}
    with ape.reverts(world.market.InvalidSignature, signer=world.relayer.address):
        way.submit()


@pytest.mark.parametrize("field", ["reward", "round", "node", "requestId"])
def test_submit_assigned__set_of_something_else__assignment_mismatch(world, field):
    way = Way(world).to_window()
    other = {"node": world.stranger.address, "requestId": bytes(32)}.get(field) or way.assignment[field] + 1
    way.assignment |= {field: other}
    with ape.reverts(world.market.AssignmentMismatch, requestId=way.assignment["requestId"]):
        way.submit()


def test_submit_assigned__two_items_or_two_nodes__assignment_mismatch(world, other_node):
    way = Way(world).to_window()
    for built in (
        world.set_of([way.item, way.item], ROUND).build(),
        world.set_of([way.item], ROUND, keys=[world.node_key, OTHER_NODE_KEY]).build(),
    ):
        with ape.reverts(world.market.AssignmentMismatch, requestId=way.posted.id):
            way.submit(built=built)


def test_submit_assigned__empty_set__malformed_set(world):
    way = Way(world).to_window()
    with ape.reverts(world.market.MalformedSet, setIndex=0):
        way.submit(built=way.set.build() | {"items": []})


def test_submit_assigned__result_not_signed_by_the_node__bad_signature(world):
    way = Way(world).to_window()
    built = way.set.build()
    forged = builders.sign_result(OTHER_NODE_KEY, world.market.address, way.item, world.relayer.address, ROUND)
    with way.refused(ItemStatus.BAD_SIGNATURE):
        way.submit(built=built | {"signatures": [forged]})


def test_submit_assigned__another_relayer_than_was_named__wrong_relayer(world, bonded_other_relayer):
    way = Way(world, relayer=bonded_other_relayer, relayer_key=bonded_other_relayer.private_key).to_window()
    with way.refused(ItemStatus.WRONG_RELAYER):
        way.submit()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_submit_assigned__open_race__wrong_relayer(world, is_cancelled):
    """Any relayer with a node of its own could take what was not served, or is cancelled."""
    posted = world.post(relayer=ZERO)
    if is_cancelled:
        world.market.cancel(posted.request, sender=world.requester)
    way = Way(world, posted).to_window()
    with way.refused(ItemStatus.WRONG_RELAYER):
        way.submit()


def test_submit_assigned__named_relayer_that_left__is_good(world, stakes):
    stakes.beginUnbondRelayer(sender=world.relayer)
    way = Way(world).to_window()
    way.submit()
    assert world.status_of(way.posted) == Status.FULFILLED


def test_submit_assigned__quorum__is_not_for_one_node(world):
    posted = world.post(mode=Mode.QUORUM, k=2, n=2)
    way = Way(world, posted).to_window()
    with way.refused(ItemStatus.BAD_SIGNATURE):
        way.submit()


def test_submit_assigned__reward_above_the_maximum__reward_too_high(world):
    posted = world.post()
    way = Way(world, posted, reward=posted.params["maxReward"] + 1).to_window()
    with way.refused(ItemStatus.REWARD_TOO_HIGH):
        way.submit()


def test_submit_assigned__gas_price_above_the_cap__is_paid_at_the_cap(world):
    posted = world.post(gasBudget=10**17)
    way = Way(world, posted)
    world.next_block_base_fee(7 * GWEI)
    way.to_window()
    signature = builders.sign(world.relayer_key, world.market.address, "Assignment", way.assignment)
    world.market.submitAssigned(
        _as_tuple(way.assignment),
        signature,
        _as_tuple(way.set.build()),
        sender=world.stranger,
        max_fee=100 * GWEI,
        max_priority_fee=50 * GWEI,
    )
    shares = builders.shares(posted, way.item.reward, world.gas_terms.assigned, 9 * GWEI)
    assert world.credit(world.node_owner) == shares.node + shares.relayer
