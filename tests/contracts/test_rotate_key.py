"""StakeManager.rotateKey, and what both keys are afterwards."""

from __future__ import annotations

import ape
import pytest
from eth_account import Account
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import ZERO, ItemStatus, item
from tests.contracts.conftest import MIN_STAKE, OTHER_NODE_KEY, UNBOND_DELAY

NEW_KEY, THIRD_KEY = "0x" + "c3" * 32, "0x" + "d4" * 32
NEW, THIRD = (Account.from_key(key).address for key in (NEW_KEY, THIRD_KEY))
MODEL = keccak(text="tiny")
ELSEWHERE = "0x" + "11" * 20


def rotate(world, *markets, key=None, new_key=NEW_KEY, new=None, owner=None, signature=None):
    """Rotates the world's node, or that of `key`, to `new_key`."""
    owner = owner or world.node_owner
    if signature is None:
        signature = builders.sign_registration(new_key, world.stakes.address, owner.address)
    new = new or Account.from_key(new_key).address
    return world.stakes.rotateKey(key or world.node, new, signature, list(markets), sender=owner)


def membership(world, key, market) -> tuple:
    return tuple(world.stakes.membershipOf(key, market))


# WHO AND WITH WHAT


def test_rotate_key__signed_by_the_new_key__signs_from_now_on(world):
    receipt = rotate(world)
    (event,) = receipt.decode_logs(world.stakes.KeyRotated)
    assert (event.oldKey, event.newKey) == (world.node, NEW)
    assert world.stakes.retiredAt(world.node) == receipt.timestamp
    assert world.stakes.retiredAt(NEW) == 0
    assert world.stakes.nodeOf(NEW).key == NEW
    assert world.stakes.nodeOf(world.node) == world.stakes.nodeOf(NEW)
    assert [world.stakes.canonicalNodeOf(key) for key in (world.node, NEW)] == [world.node] * 2


def test_rotate_key__unknown_node__unknown_node(world):
    with ape.reverts(world.stakes.UnknownNode, key=THIRD):
        rotate(world, key=THIRD)


def test_rotate_key__by_another__not_owner(world):
    expected = {"caller": world.stranger.address, "owner": world.node_owner.address}
    with ape.reverts(world.stakes.NotOwner, **expected):
        rotate(world, owner=world.stranger)


@pytest.mark.parametrize("whose", ["its own", "another node's"])
def test_rotate_key__key_of_a_node__key_already_used(world, other_node, whose):
    key, address = {"its own": (world.node_key, world.node), "another node's": (OTHER_NODE_KEY, other_node)}[whose]
    with ape.reverts(world.stakes.KeyAlreadyUsed, key=address):
        rotate(world, new_key=key)


def test_rotate_key__back_to_a_retired_key__key_already_used(world):
    rotate(world)
    with ape.reverts(world.stakes.KeyAlreadyUsed, key=world.node):
        rotate(world, new_key=world.node_key)


def test_register_node__retired_key__key_already_used(world):
    rotate(world)
    signature = builders.sign_registration(world.node_key, world.stakes.address, world.stranger.address)
    with ape.reverts(world.stakes.KeyAlreadyUsed, key=world.node):
        world.stakes.registerNode(world.node, "", signature, sender=world.stranger, value=MIN_STAKE)


@pytest.mark.parametrize("case", ["another key", "another owner", "another contract", "none"])
def test_rotate_key__not_signed_by_the_new_key_for_this_owner__invalid_key_signature(world, case):
    stakes, owner = world.stakes.address, world.node_owner.address
    consent = {"key": NEW, "owner": owner}
    signature = {
        "another key": builders.sign(world.node_key, stakes, "RegisterNode", consent),
        "another owner": builders.sign_registration(NEW_KEY, stakes, world.stranger.address),
        "another contract": builders.sign_registration(NEW_KEY, world.log.address, owner),
        "none": b"",
    }[case]
    with ape.reverts(world.stakes.InvalidKeySignature, key=NEW):
        rotate(world, signature=signature)


@pytest.mark.parametrize("signature", [b"", bytes(65)])
def test_rotate_key__zero_address__invalid_key_signature(world, signature):
    with ape.reverts(world.stakes.InvalidKeySignature, key=ZERO):
        rotate(world, new=ZERO, signature=signature)


def test_rotate_key__by_a_retired_key_s_name__rotates_the_one_that_signs(world):
    rotate(world)
    world.mine_at(world.now + 10)
    receipt = rotate(world, new_key=THIRD_KEY)  # named by the node's first key still
    (event,) = receipt.decode_logs(world.stakes.KeyRotated)
    assert (event.oldKey, event.newKey) == (NEW, THIRD)
    assert world.stakes.nodeOf(world.node).key == THIRD
    assert world.stakes.canonicalNodeOf(THIRD) == world.node
    assert world.stakes.retiredAt(NEW) == receipt.timestamp > world.stakes.retiredAt(world.node)


# MARKETS


def test_rotate_key__market_named__new_key_has_the_place_and_the_old_one_for_the_delay(world):
    before = membership(world, world.node, world.market)
    receipt = rotate(world, world.market)
    leaves_at = receipt.timestamp + UNBOND_DELAY
    assert membership(world, NEW, world.market) == before
    world.mine_at(leaves_at - 1)
    assert membership(world, world.node, world.market) == before
    world.mine_at(leaves_at)
    assert membership(world, world.node, world.market) == (ZERO, 0)
    assert membership(world, NEW, world.market) == before
    assert world.stakes.payeeOf(world.node, world.market) == world.node_owner


def test_rotate_key__market_not_named__stays_the_old_key_s(world):
    before = membership(world, world.node, world.market)
    receipt = rotate(world)
    world.mine_at(receipt.timestamp + UNBOND_DELAY)
    assert membership(world, world.node, world.market) == before
    assert membership(world, NEW, world.market) == (ZERO, 0)


def test_rotate_key__several_markets__each_moves(world):
    world.stakes.joinMarket(world.node, ELSEWHERE, sender=world.node_owner)
    world.stakes.setPayee(world.node, ELSEWHERE, world.stranger, sender=world.node_owner)
    before = [membership(world, world.node, market) for market in (world.market, ELSEWHERE)]
    rotate(world, world.market, ELSEWHERE)
    assert [membership(world, NEW, market) for market in (world.market, ELSEWHERE)] == before
    assert before[1][0] == world.stranger


def test_rotate_key__leaving_membership__moves_as_leaving_at_the_same_time(world):
    left = world.stakes.leaveMarket(world.node, world.market, sender=world.node_owner)
    before = membership(world, world.node, world.market)
    world.mine_at(left.timestamp + 1000)
    rotate(world, world.market)
    leaves_at = left.timestamp + UNBOND_DELAY
    world.mine_at(leaves_at - 1)
    assert membership(world, world.node, world.market) == membership(world, NEW, world.market) == before
    world.mine_at(leaves_at)
    assert membership(world, world.node, world.market) == membership(world, NEW, world.market) == (ZERO, 0)


@pytest.mark.parametrize("has_left", [False, True])
def test_rotate_key__not_a_member__not_joined_and_nothing_has_happened(world, has_left):
    if has_left:
        world.stakes.joinMarket(world.node, ELSEWHERE, sender=world.node_owner)
        left = world.stakes.leaveMarket(world.node, ELSEWHERE, sender=world.node_owner)
        world.next_block_at(left.timestamp + UNBOND_DELAY)
    with ape.reverts(world.stakes.NotJoined, key=world.node, market=ELSEWHERE):
        rotate(world, world.market, ELSEWHERE)
    assert world.stakes.nodeOf(world.node).key == world.node
    assert world.stakes.canonicalNodeOf(NEW) == ZERO
    assert world.stakes.retiredAt(world.node) == 0


def test_join_market__retired_key__key_retired(world):
    rotate(world)
    with ape.reverts(world.stakes.KeyRetired, key=world.node):
        world.stakes.joinMarket(world.node, ELSEWHERE, sender=world.node_owner)
    world.stakes.joinMarket(NEW, ELSEWHERE, sender=world.node_owner)
    assert membership(world, NEW, ELSEWHERE) == (world.node_owner, world.now)


def test_leave_market_and_set_payee__after_a_rotation__change_one_key_s_place(world):
    rotate(world, world.market)
    world.stakes.setPayee(world.node, world.market, world.stranger, sender=world.node_owner)
    assert membership(world, world.node, world.market)[0] == world.stranger
    assert membership(world, NEW, world.market)[0] == world.node_owner
    left = world.stakes.leaveMarket(NEW, world.market, sender=world.node_owner)
    world.mine_at(left.timestamp + UNBOND_DELAY - 1)
    assert membership(world, NEW, world.market)[0] == world.node_owner
    world.mine_at(left.timestamp + UNBOND_DELAY)
    assert membership(world, NEW, world.market) == (ZERO, 0)


# WHAT IS THE NODE'S


def test_stake_and_unbonding__by_either_key__are_the_nodes(world):
    world.stakes.beginUnbond(world.node, 7, sender=world.node_owner)
    rotate(world, world.market)
    world.stakes.addStake(world.node, sender=world.stranger, value=5)
    world.stakes.addStake(NEW, sender=world.stranger, value=6)
    node = world.stakes.nodeOf(NEW)
    assert (node.stake, node.unbonding) == (MIN_STAKE + 11, 7)
    world.next_block_at(node.unbondAt)
    receipt = world.stakes.withdrawStake(NEW, sender=world.node_owner)
    (event,) = receipt.decode_logs(world.stakes.StakeWithdrawn)
    assert (event.amount, event.stake) == (7, MIN_STAKE + 4)
    assert world.stakes.isActive(world.node) and world.stakes.isActive(NEW)


def test_prices__by_either_key__are_the_nodes(world):
    world.stakes.setPrices(world.node, [MODEL], [10], [100], sender=world.node_owner)
    rotate(world)
    assert tuple(world.stakes.priceOf(NEW, MODEL)) == (True, 10, 100)
    world.stakes.setPrices(NEW, [MODEL], [9], [90], sender=world.node_owner)
    assert tuple(world.stakes.priceOf(world.node, MODEL)) == (True, 9, 90)
    # A raise under the new key needs its notice as one under the old key would.
    world.stakes.setPrices(NEW, [MODEL], [11], [90], sender=world.node_owner)
    assert tuple(world.stakes.priceOf(NEW, MODEL)) == (True, 9, 90)
    world.stakes.withdrawModels(world.node, [MODEL], sender=world.node_owner)
    assert tuple(world.stakes.priceOf(NEW, MODEL)) == (False, 0, 0)


# PAY


def settle_as(world, key: str) -> ItemStatus:
    """What a result that a key signed now gets."""
    posted = world.post()
    receipt = world.submit(world.set_of([item(posted)], world.record_round(), key=key))
    ((status,),) = world.statuses(receipt)
    return status


def test_results__of_both_keys__are_paid_until_the_old_one_has_left(world):
    receipt = rotate(world, world.market)
    assert settle_as(world, NEW_KEY) == ItemStatus.OK
    assert settle_as(world, world.node_key) == ItemStatus.OK
    assert world.settled_count(world.node_owner) == 2
    world.next_block_at(receipt.timestamp + UNBOND_DELAY)
    world.chain.mine()
    assert settle_as(world, world.node_key) == ItemStatus.NODE_NOT_JOINED
    assert settle_as(world, NEW_KEY) == ItemStatus.OK


def test_results__of_a_new_key_without_a_place__are_not_paid(world):
    rotate(world)
    assert settle_as(world, NEW_KEY) == ItemStatus.NODE_NOT_JOINED
    assert settle_as(world, world.node_key) == ItemStatus.OK


def test_views__key_of_no_node__are_empty(world):
    assert world.stakes.canonicalNodeOf(THIRD) == ZERO
    assert world.stakes.retiredAt(THIRD) == 0
    assert world.stakes.payeeOf(THIRD, world.market) == ZERO


def test_rotate_key__market_named_twice__already_joined(world):
    """The second time the new key would take over the old one's end."""
    with ape.reverts(world.stakes.AlreadyJoined, key=NEW, market=world.market.address):
        rotate(world, world.market, world.market)
