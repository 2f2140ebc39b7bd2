from __future__ import annotations

import ape
import pytest

from tests.contracts.conftest import MIN_BOND, UNBOND_DELAY

pytestmark = pytest.mark.usefixtures("world")  # where `relayer` is bonded


def test_register_relayer__bond__is_bonded(stakes, stranger, chain):
    receipt = stakes.registerRelayer("https://x.example", sender=stranger, value=MIN_BOND)
    (event,) = receipt.decode_logs(stakes.RelayerRegistered)
    assert (event.relayer, event.bond, event.endpoint) == (stranger, MIN_BOND, "https://x.example")
    facts = stakes.relayerOf(stranger)
    assert (facts.bond, facts.registeredAt) == (MIN_BOND, receipt.timestamp)
    assert (facts.unbondAt, facts.faults) == (0, 0)
    assert stakes.isBonded(stranger)


def test_register_relayer__a_wei_short__bond_too_small(stakes, stranger):
    with ape.reverts(stakes.BondTooSmall, bond=MIN_BOND - 1, least=MIN_BOND):
        stakes.registerRelayer("", sender=stranger, value=MIN_BOND - 1)


def test_register_relayer__twice__already_registered(stakes, relayer):
    with ape.reverts(stakes.AlreadyRegistered, relayer=relayer.address):
        stakes.registerRelayer("", sender=relayer, value=MIN_BOND)


def test_add_bond__registered__adds_up(stakes, relayer):
    receipt = stakes.addBond(sender=relayer, value=5)
    (event,) = receipt.decode_logs(stakes.BondAdded)
    assert (event.relayer, event.amount, event.bond) == (relayer, 5, MIN_BOND + 5)
    assert stakes.relayerOf(relayer).bond == MIN_BOND + 5


def test_add_bond__nothing__nothing_sent(stakes, relayer):
    with ape.reverts(stakes.NothingSent):
        stakes.addBond(sender=relayer)


@pytest.mark.parametrize("function", ["addBond", "beginUnbondRelayer", "withdrawBond"])
def test_relayer_functions__not_registered__not_a_relayer(stakes, stranger, function):
    value = {"value": 1} if function == "addBond" else {}
    with ape.reverts(stakes.NotARelayer, relayer=stranger.address):
        getattr(stakes, function)(sender=stranger, **value)


def test_begin_unbond_relayer__bonded__is_bonded_no_more(stakes, relayer):
    receipt = stakes.beginUnbondRelayer(sender=relayer)
    (event,) = receipt.decode_logs(stakes.RelayerUnbondBegun)
    assert (event.relayer, event.withdrawableAt) == (relayer, receipt.timestamp + UNBOND_DELAY)
    assert not stakes.isBonded(relayer)
    assert stakes.relayerOf(relayer).bond == MIN_BOND


def test_withdraw_bond__not_begun__nothing_unbonding(stakes, relayer):
    with ape.reverts(stakes.NothingUnbonding, account=relayer.address):
        stakes.withdrawBond(sender=relayer)


def test_withdraw_bond__a_second_early__still_unbonding(world, stakes, relayer):
    released_at = stakes.beginUnbondRelayer(sender=relayer).timestamp + UNBOND_DELAY
    world.next_block_at(released_at - 1)
    expected = {"withdrawableAt": released_at, "blockTimestamp": released_at - 1}
    with ape.reverts(stakes.StillUnbonding, **expected):
        stakes.withdrawBond(sender=relayer)


def test_withdraw_bond__when_released__pays_all_of_it(world, stakes, relayer):
    stakes.addBond(sender=relayer, value=5)
    stakes.beginUnbondRelayer(sender=relayer)
    world.next_block_at(world.now + UNBOND_DELAY)
    before = stakes.balance
    receipt = stakes.withdrawBond(sender=relayer)
    (event,) = receipt.decode_logs(stakes.BondWithdrawn)
    assert (event.relayer, event.amount) == (relayer, MIN_BOND + 5)
    assert stakes.balance == before - MIN_BOND - 5
    assert tuple(stakes.relayerOf(relayer)) == (0, 0, 0, 0)


def test_withdraw_bond__twice__not_a_relayer(world, stakes, relayer):
    stakes.beginUnbondRelayer(sender=relayer)
    world.next_block_at(world.now + UNBOND_DELAY)
    stakes.withdrawBond(sender=relayer)
    with ape.reverts(stakes.NotARelayer, relayer=relayer.address):
        stakes.withdrawBond(sender=relayer)


def test_register_relayer__after_the_bond_was_withdrawn__is_bonded_again(world, stakes, relayer):
    stakes.beginUnbondRelayer(sender=relayer)
    world.next_block_at(world.now + UNBOND_DELAY)
    stakes.withdrawBond(sender=relayer)
    stakes.registerRelayer("", sender=relayer, value=MIN_BOND)
    assert stakes.isBonded(relayer)


def test_is_bonded__nobody__is_not(stakes, stranger):
    assert not stakes.isBonded(stranger)
