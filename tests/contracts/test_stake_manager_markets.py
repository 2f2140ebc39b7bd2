from __future__ import annotations

import ape
import pytest

from tests.contracts.builders import ZERO
from tests.contracts.conftest import UNBOND_DELAY

ELSEWHERE = "0x" + "11" * 20


def join(world, market=ELSEWHERE):
    return world.stakes.joinMarket(world.node, market, sender=world.node_owner)


def leave(world, market=ELSEWHERE):
    return world.stakes.leaveMarket(world.node, market, sender=world.node_owner)


def membership(world, market=ELSEWHERE) -> tuple:
    return tuple(world.stakes.membershipOf(world.node, market))


def test_join_market__owner__is_paid_from_now_on(world):
    assert membership(world) == (ZERO, 0)
    receipt = join(world)
    (event,) = receipt.decode_logs(world.stakes.MarketJoined)
    assert (event.key, event.market, event.payee) == (world.node, ELSEWHERE, world.node_owner)
    assert membership(world) == (world.node_owner, world.now)


def test_join_market__twice__already_joined(world):
    join(world)
    with ape.reverts(world.stakes.AlreadyJoined, key=world.node, market=ELSEWHERE):
        join(world)


def test_join_market__no_market__zero_address(world):
    with ape.reverts(world.stakes.ZeroAddress):
        join(world, ZERO)


def test_leave_market__joined__stays_for_the_delay(world):
    joined_at = join(world).timestamp
    receipt = leave(world)
    leaves_at = receipt.timestamp + UNBOND_DELAY
    (event,) = receipt.decode_logs(world.stakes.MarketLeft)
    assert (event.key, event.market, event.leavesAt) == (world.node, ELSEWHERE, leaves_at)
    world.mine_at(leaves_at - 1)
    assert membership(world) == (world.node_owner, joined_at)
    world.mine_at(leaves_at)
    assert membership(world) == (ZERO, 0)


def test_leave_market__not_joined__not_joined(world):
    with ape.reverts(world.stakes.NotJoined, key=world.node, market=ELSEWHERE):
        leave(world)


def test_leave_market__after_it_has_left__not_joined(world):
    join(world)
    leave(world)
    world.next_block_at(world.now + UNBOND_DELAY)
    with ape.reverts(world.stakes.NotJoined, key=world.node, market=ELSEWHERE):
        leave(world)


def test_join_market__while_leaving__already_joined(world):
    join(world)
    leave(world)
    with ape.reverts(world.stakes.AlreadyJoined, key=world.node, market=ELSEWHERE):
        join(world)


def test_join_market__after_it_has_left__joins_anew(world):
    join(world)
    leave(world)
    world.next_block_at(world.now + UNBOND_DELAY)
    join(world)
    assert membership(world) == (world.node_owner, world.now)


def test_set_payee__joined__is_paid_instead(world):
    joined_at = join(world).timestamp
    receipt = world.stakes.setPayee(world.node, ELSEWHERE, world.stranger, sender=world.node_owner)
    (event,) = receipt.decode_logs(world.stakes.PayeeChanged)
    assert (event.key, event.market, event.payee) == (world.node, ELSEWHERE, world.stranger)
    assert membership(world) == (world.stranger, joined_at)


def test_set_payee__nobody__zero_address(world):
    join(world)
    with ape.reverts(world.stakes.ZeroAddress):
        world.stakes.setPayee(world.node, ELSEWHERE, ZERO, sender=world.node_owner)


@pytest.mark.parametrize("has_left", [False, True])
def test_set_payee__not_joined__not_joined(world, has_left):
    if has_left:
        join(world)
        leave(world)
        world.next_block_at(world.now + UNBOND_DELAY)
    with ape.reverts(world.stakes.NotJoined, key=world.node, market=ELSEWHERE):
        world.stakes.setPayee(world.node, ELSEWHERE, world.stranger, sender=world.node_owner)
