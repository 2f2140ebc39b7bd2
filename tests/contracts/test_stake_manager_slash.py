"""What the faults contract, and nobody else, may take. Here it is a wallet that does what it is told."""

from __future__ import annotations

from dataclasses import dataclass

import ape
import pytest
from eth_account import Account

from tests.contracts import builders
from tests.contracts.builders import ZERO
from tests.contracts.conftest import MIN_BOND, MIN_STAKE, NODE_KEY, OTHER_NODE_KEY, PRICE_NOTICE, UNBOND_DELAY

MARKET, ELSEWHERE = "0x" + "11" * 20, "0x" + "22" * 20
NODE, OTHER = (Account.from_key(key).address for key in (NODE_KEY, OTHER_NODE_KEY))


@dataclass
class Court:
    """A stake manager of its own, with a node that is in MARKET and a relayer, and what may slash them."""

    stakes: object
    faults: object
    node_owner: object
    relayer: object
    anyone: object

    def slash_node(self, amount: int, key: str = NODE, market: str = MARKET, is_miss: bool = False):
        return self._slash(self.stakes.slashNode.encode_input(key, market, amount, is_miss))

    def slash_relayer(self, amount: int, relayer=None):
        return self._slash(self.stakes.slashRelayer.encode_input(relayer or self.relayer, amount))

    def _slash(self, call: bytes):
        return self.faults.forward(self.stakes, call, sender=self.anyone)

    def node(self):
        return self.stakes.nodeOf(NODE)


@pytest.fixture
def court(project, owner, relayer, node_owner, stranger):
    faults = owner.deploy(project.Wallet)
    stakes = owner.deploy(project.StakeManager, MIN_STAKE, MIN_BOND, UNBOND_DELAY, PRICE_NOTICE, faults)
    signature = builders.sign_registration(NODE_KEY, stakes.address, node_owner.address)
    stakes.registerNode(NODE, "", signature, sender=node_owner, value=MIN_STAKE)
    stakes.joinMarket(NODE, MARKET, sender=node_owner)
    stakes.registerRelayer("", sender=relayer, value=MIN_BOND)
    return Court(stakes, faults, node_owner, relayer, stranger)


@pytest.mark.parametrize("who", ["owner", "node_owner", "relayer", "stranger"])
def test_slash__by_anybody_else__not_faults(court, request, who):
    account = request.getfixturevalue(who)
    with ape.reverts(court.stakes.NotFaults, caller=account.address):
        court.stakes.slashNode(NODE, MARKET, 1, True, sender=account)
    with ape.reverts(court.stakes.NotFaults, caller=account.address):
        court.stakes.slashRelayer(court.relayer, 1, sender=account)


@pytest.mark.parametrize(("is_miss", "counted"), [(True, (1, 0)), (False, (0, 1))])
def test_slash_node__part__is_taken_counted_and_sent(court, is_miss, counted):
    receipt = court.slash_node(5, is_miss=is_miss)
    (event,) = receipt.decode_logs(court.stakes.NodeSlashed)
    assert (event.key, event.taken, event.stake) == (NODE, 5, MIN_STAKE - 5)
    assert court.node().stake == MIN_STAKE - 5
    assert (court.node().misses, court.node().faults) == counted
    assert court.faults.balance == 5
    assert not court.stakes.isActive(NODE)


@pytest.mark.parametrize("amount", [MIN_STAKE, MIN_STAKE + 1, 2**256 - 1])
def test_slash_node__more_than_there_is__takes_what_there_is(court, amount):
    (event,) = court.slash_node(amount).decode_logs(court.stakes.NodeSlashed)
    assert (event.taken, event.stake) == (MIN_STAKE, 0)
    assert court.faults.balance == MIN_STAKE
    (event,) = court.slash_node(1).decode_logs(court.stakes.NodeSlashed)
    assert (event.taken, event.stake) == (0, 0)
    assert court.node().faults == 2


@pytest.mark.parametrize(
    ("unbonding", "slashed", "left"), [(MIN_STAKE, 10, MIN_STAKE - 10), (7, 10, 7), (7, MIN_STAKE - 3, 3)]
)
def test_slash_node__unbonding__is_not_safe_from_it(court, unbonding, slashed, left):
    court.stakes.beginUnbond(NODE, unbonding, sender=court.node_owner)
    court.slash_node(slashed)
    assert court.node().unbonding == left
    ape.chain.pending_timestamp = court.node().unbondAt
    (event,) = court.stakes.withdrawStake(NODE, sender=court.node_owner).decode_logs(court.stakes.StakeWithdrawn)
    assert (event.amount, event.stake) == (left, MIN_STAKE - slashed - left)


def test_slash_node__market_that_it_never_joined__not_joined(court):
    with ape.reverts(court.stakes.NotJoined, key=NODE, market=ELSEWHERE):
        court.slash_node(1, market=ELSEWHERE)
    with ape.reverts(court.stakes.NotJoined, key=OTHER, market=MARKET):
        court.slash_node(1, key=OTHER)


def test_slash_node__market_that_it_has_left__is_taken(court):
    left = court.stakes.leaveMarket(NODE, MARKET, sender=court.node_owner)
    ape.chain.pending_timestamp = left.timestamp + UNBOND_DELAY + 1
    ape.chain.mine()
    assert tuple(court.stakes.membershipOf(NODE, MARKET)) == (ZERO, 0)
    court.slash_node(5)
    assert court.node().stake == MIN_STAKE - 5


def test_slash_node__retired_key__costs_the_node_the_same_stake(court):
    signature = builders.sign_registration(OTHER_NODE_KEY, court.stakes.address, court.node_owner.address)
    court.stakes.rotateKey(NODE, OTHER, signature, [MARKET], sender=court.node_owner)
    (event,) = court.slash_node(5, key=NODE).decode_logs(court.stakes.NodeSlashed)
    assert (event.key, event.stake) == (NODE, MIN_STAKE - 5)
    (event,) = court.slash_node(6, key=OTHER).decode_logs(court.stakes.NodeSlashed)
    assert (event.key, event.stake) == (OTHER, MIN_STAKE - 11)
    assert court.node().faults == 2


@pytest.mark.parametrize(("amount", "taken"), [(5, 5), (MIN_BOND, MIN_BOND), (2**256 - 1, MIN_BOND)])
def test_slash_relayer__at_most_the_bond__is_taken_counted_and_sent(court, amount, taken):
    (event,) = court.slash_relayer(amount).decode_logs(court.stakes.RelayerSlashed)
    assert (event.relayer, event.taken, event.bond) == (court.relayer, taken, MIN_BOND - taken)
    relayer = court.stakes.relayerOf(court.relayer)
    assert (relayer.bond, relayer.faults) == (MIN_BOND - taken, 1)
    assert court.faults.balance == taken
    assert not court.stakes.isBonded(court.relayer)


def test_slash_relayer__unbonding__is_not_safe_from_it(court):
    begun = court.stakes.beginUnbondRelayer(sender=court.relayer)
    court.slash_relayer(5)
    ape.chain.pending_timestamp = begun.timestamp + UNBOND_DELAY
    (event,) = court.stakes.withdrawBond(sender=court.relayer).decode_logs(court.stakes.BondWithdrawn)
    assert event.amount == MIN_BOND - 5


def test_slash_relayer__that_registers_anew__keeps_its_record(court):
    court.slash_relayer(5)
    begun = court.stakes.beginUnbondRelayer(sender=court.relayer)
    ape.chain.pending_timestamp = begun.timestamp + UNBOND_DELAY
    court.stakes.withdrawBond(sender=court.relayer)
    court.stakes.registerRelayer("", sender=court.relayer, value=MIN_BOND)
    assert court.stakes.relayerOf(court.relayer).faults == 1


def test_slash__receiver_refuses_the_wei__transfer_failed_and_nothing_is_taken(court):
    court.faults.setRefuses(True, sender=court.anyone)
    with ape.reverts(court.stakes.TransferFailed, to=court.faults.address, amount=5):
        court.slash_node(5)
    with ape.reverts(court.stakes.TransferFailed, to=court.faults.address, amount=6):
        court.slash_relayer(6)
    assert (court.node().stake, court.node().faults) == (MIN_STAKE, 0)
    assert court.stakes.relayerOf(court.relayer).bond == MIN_BOND
