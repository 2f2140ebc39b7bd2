from __future__ import annotations

import ape
import pytest
from eth_account import Account

from tests.contracts import builders
from tests.contracts.builders import ZERO
from tests.contracts.conftest import MIN_STAKE, OTHER_NODE_KEY, UNBOND_DELAY

OTHER_NODE = Account.from_key(OTHER_NODE_KEY).address


def register(world, key=OTHER_NODE_KEY, owner=None, value=MIN_STAKE, node=None, signature=None):
    owner = owner or world.node_owner
    node = node or Account.from_key(key).address
    if signature is None:
        signature = builders.sign_registration(key, world.stakes.address, owner.address)
    return world.stakes.registerNode(node, "ipfs://node", signature, sender=owner, value=value)


# REGISTRATION


def test_register_node__signed_by_its_key__belongs_to_the_caller(world):
    receipt = register(world, value=MIN_STAKE + 1)
    (event,) = receipt.decode_logs(world.stakes.NodeRegistered)
    assert (event.key, event.owner) == (OTHER_NODE, world.node_owner)
    assert (event.stake, event.metadataURI) == (MIN_STAKE + 1, "ipfs://node")
    node = world.stakes.nodeOf(OTHER_NODE)
    assert (node.owner, node.registeredAt, node.stake) == (world.node_owner, world.now, MIN_STAKE + 1)
    assert (node.unbonding, node.unbondAt, node.misses, node.faults) == (0, 0, 0, 0)
    assert world.stakes.isActive(OTHER_NODE)


def test_register_node__stake_a_wei_short__stake_too_small(world):
    with ape.reverts(world.stakes.StakeTooSmall, stake=MIN_STAKE - 1, least=MIN_STAKE):
        register(world, value=MIN_STAKE - 1)


def test_register_node__key_is_in_use__key_already_used(world):
    with ape.reverts(world.stakes.KeyAlreadyUsed, key=world.node):
        register(world, world.node_key, owner=world.stranger)


def test_register_node__key_was_used_by_a_node_that_is_gone__key_already_used(world):
    world.stakes.beginUnbond(world.node, MIN_STAKE, sender=world.node_owner)
    world.next_block_at(world.now + UNBOND_DELAY)
    world.stakes.withdrawStake(world.node, sender=world.node_owner)
    with ape.reverts(world.stakes.KeyAlreadyUsed, key=world.node):
        register(world, world.node_key)


def test_register_node__signed_for_another_owner__invalid_key_signature(world):
    signature = builders.sign_registration(OTHER_NODE_KEY, world.stakes.address, world.node_owner.address)
    with ape.reverts(world.stakes.InvalidKeySignature, key=OTHER_NODE):
        register(world, owner=world.stranger, signature=signature)


def test_register_node__signed_by_another_key__invalid_key_signature(world):
    signature = builders.sign(
        world.node_key,
        world.stakes.address,
        "RegisterNode",
        {"key": OTHER_NODE, "owner": world.node_owner.address},
    )
    with ape.reverts(world.stakes.InvalidKeySignature, key=OTHER_NODE):
        register(world, signature=signature)


@pytest.mark.parametrize("signature", [b"", b"\x02" * 64, bytes(65)])
def test_register_node__zero_address_and_no_signature__invalid_key_signature(world, signature):
    with ape.reverts(world.stakes.InvalidKeySignature, key=ZERO):
        register(world, node=ZERO, signature=signature)


def test_register_node__signed_for_another_contract__invalid_key_signature(world):
    signature = builders.sign_registration(OTHER_NODE_KEY, world.log.address, world.node_owner.address)
    with ape.reverts(world.stakes.InvalidKeySignature, key=OTHER_NODE):
        register(world, signature=signature)


# STAKE


def test_add_stake__by_anyone__adds_up(world):
    receipt = world.stakes.addStake(world.node, sender=world.stranger, value=5)
    (event,) = receipt.decode_logs(world.stakes.StakeAdded)
    assert (event.key, event.amount, event.stake) == (world.node, 5, MIN_STAKE + 5)
    assert world.stakes.nodeOf(world.node).stake == MIN_STAKE + 5


def test_add_stake__nothing__nothing_sent(world):
    with ape.reverts(world.stakes.NothingSent):
        world.stakes.addStake(world.node, sender=world.stranger)


def test_add_stake__unknown_node__unknown_node(world):
    with ape.reverts(world.stakes.UnknownNode, key=OTHER_NODE):
        world.stakes.addStake(OTHER_NODE, sender=world.stranger, value=1)


def test_begin_unbond__part__stands_behind_the_node_no_more(world):
    world.stakes.addStake(world.node, sender=world.node_owner, value=5)
    receipt = world.stakes.beginUnbond(world.node, 5, sender=world.node_owner)
    (event,) = receipt.decode_logs(world.stakes.UnbondBegun)
    assert (event.key, event.amount, event.withdrawableAt) == (world.node, 5, world.now + UNBOND_DELAY)
    node = world.stakes.nodeOf(world.node)
    assert (node.stake, node.unbonding, node.unbondAt) == (MIN_STAKE + 5, 5, world.now + UNBOND_DELAY)
    assert world.stakes.isActive(world.node)


def test_begin_unbond__below_the_minimum__node_is_inactive(world):
    world.stakes.beginUnbond(world.node, 1, sender=world.node_owner)
    assert not world.stakes.isActive(world.node)


def test_begin_unbond__again__adds_up_and_waits_anew(world):
    world.stakes.beginUnbond(world.node, 1, sender=world.node_owner)
    world.mine_at(world.now + 100)
    world.stakes.beginUnbond(world.node, 2, sender=world.node_owner)
    node = world.stakes.nodeOf(world.node)
    assert (node.unbonding, node.unbondAt) == (3, world.now + UNBOND_DELAY)


def test_begin_unbond__more_than_is_left__unbond_too_large(world):
    world.stakes.beginUnbond(world.node, 1, sender=world.node_owner)
    with ape.reverts(world.stakes.UnbondTooLarge, amount=MIN_STAKE, available=MIN_STAKE - 1):
        world.stakes.beginUnbond(world.node, MIN_STAKE, sender=world.node_owner)


@pytest.mark.parametrize("amount", [2**128, 2**256 - 1])
def test_begin_unbond__absurd_amount__unbond_too_large(world, amount):
    with ape.reverts(world.stakes.UnbondTooLarge, amount=amount, available=MIN_STAKE):
        world.stakes.beginUnbond(world.node, amount, sender=world.node_owner)


def test_begin_unbond__nothing__nothing_unbonding(world):
    with ape.reverts(world.stakes.NothingUnbonding, account=world.node):
        world.stakes.beginUnbond(world.node, 0, sender=world.node_owner)


def test_withdraw_stake__a_second_early__still_unbonding(world):
    world.stakes.beginUnbond(world.node, 5, sender=world.node_owner)
    released_at = world.now + UNBOND_DELAY
    world.next_block_at(released_at - 1)
    expected = {"withdrawableAt": released_at, "blockTimestamp": released_at - 1}
    with ape.reverts(world.stakes.StillUnbonding, **expected):
        world.stakes.withdrawStake(world.node, sender=world.node_owner)


def test_withdraw_stake__when_released__pays_the_owner(world):
    world.stakes.beginUnbond(world.node, 5, sender=world.node_owner)
    world.next_block_at(world.now + UNBOND_DELAY)
    before = world.stakes.balance
    receipt = world.stakes.withdrawStake(world.node, sender=world.node_owner)
    (event,) = receipt.decode_logs(world.stakes.StakeWithdrawn)
    assert (event.key, event.amount, event.stake) == (world.node, 5, MIN_STAKE - 5)
    node = world.stakes.nodeOf(world.node)
    assert (node.stake, node.unbonding, node.unbondAt) == (MIN_STAKE - 5, 0, 0)
    assert world.stakes.balance == before - 5


def test_withdraw_stake__nothing_begun__nothing_unbonding(world):
    with ape.reverts(world.stakes.NothingUnbonding, account=world.node):
        world.stakes.withdrawStake(world.node, sender=world.node_owner)


def test_withdraw_stake__twice__nothing_unbonding(world):
    world.stakes.beginUnbond(world.node, 5, sender=world.node_owner)
    world.next_block_at(world.now + UNBOND_DELAY)
    world.stakes.withdrawStake(world.node, sender=world.node_owner)
    with ape.reverts(world.stakes.NothingUnbonding, account=world.node):
        world.stakes.withdrawStake(world.node, sender=world.node_owner)


def test_withdraw_stake__owner_refuses_wei__transfer_failed(world, project):
    wallet = world.owner.deploy(project.Wallet)
    signature = builders.sign_registration(OTHER_NODE_KEY, world.stakes.address, wallet.address)
    call = world.stakes.registerNode.encode_input(OTHER_NODE, "", signature)
    wallet.forward(world.stakes, call, sender=world.owner, value=MIN_STAKE)
    unbond = world.stakes.beginUnbond.encode_input(OTHER_NODE, 7)
    wallet.forward(world.stakes, unbond, sender=world.owner)
    world.mine_at(world.now + UNBOND_DELAY)
    wallet.setRefuses(True, sender=world.owner)
    with ape.reverts(world.stakes.TransferFailed, to=wallet.address, amount=7):
        wallet.forward(world.stakes, world.stakes.withdrawStake.encode_input(OTHER_NODE), sender=world.owner)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("beginUnbond", (1,)),
        ("withdrawStake", ()),
        ("joinMarket", (ZERO,)),
        ("leaveMarket", (ZERO,)),
        ("setPayee", (ZERO, OTHER_NODE)),
        ("setPrices", ([], [], [])),
        ("withdrawModels", ([],)),
    ],
)
def test_node_functions__by_another_or_of_an_unknown_node__are_refused(world, function, arguments):
    call = getattr(world.stakes, function)
    expected = {"caller": world.stranger.address, "owner": world.node_owner.address}
    with ape.reverts(world.stakes.NotOwner, **expected):
        call(world.node, *arguments, sender=world.stranger)
    with ape.reverts(world.stakes.UnknownNode, key=OTHER_NODE):
        call(OTHER_NODE, *arguments, sender=world.node_owner)


def test_node_functions__signing_key_itself__is_not_the_owner(world):
    key = world.node
    world.provider.set_balance(key, 10**18)
    with ape.reverts(world.stakes.NotOwner):
        world.stakes.withdrawStake(key, sender=world.provider.account_manager[key])


def test_node_of__unknown__is_empty(world):
    assert world.stakes.nodeOf(OTHER_NODE).owner == ZERO
    assert not world.stakes.isActive(OTHER_NODE)
    assert not world.stakes.isActive(ZERO)
