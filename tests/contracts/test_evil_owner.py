"""An owner turned evil, who does all that owners can between every two steps of everybody else.

Whatever the order, and whoever of a gang the contracts have been handed to by then: escrow, credit, stake and bond come
out, to the wei. New requests may be stopped, and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import ape
import pytest
from ape.exceptions import ContractLogicError
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import GRACE, ZERO, Item, ItemStatus, Mode, Posted, Shares, Status, item
from tests.contracts.conftest import MIN_BOND, MIN_STAKE, UNBOND_DELAY
from tests.contracts.world import _as_tuple

OWNERSHIP_DELAY = 3 * 86_400
MOVES_BETWEEN_STEPS = 4
# What the contracts say to whom they do not obey.
DISOBEYED = ("OwnableUnauthorizedAccount", "OwnershipTimelocked", "NotAttested")


class Gang:
    """The owner of all that is owned, and whom it hands things to and fro with."""

    def __init__(self, world, registry, verifier, members, seed: int) -> None:
        self.world = world
        self.contracts = [world.market, registry, verifier]
        self.registry, self.verifier = registry, verifier
        self.members = members
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._models = 0

    def strike(self, count: int = MOVES_BETWEEN_STEPS) -> None:
        """Random moves, now and then by a member who may not make them. What is refused is no more than refused."""
        for _ in range(count):
            move = self.rng.choice([self._pause, self._transfer, self._accept, self._register, self._verifier])
            contract = self.rng.choice(self.contracts)
            try:
                name = move(contract)
            except ContractLogicError as refusal:
                self._require_disobeyed(refusal)
                name = "refused"
            self.done[name] += 1

    def _require_disobeyed(self, refusal: ContractLogicError) -> None:
        assert any(word in type(refusal).__name__ for word in DISOBEYED), repr(refusal)

    def _who(self, rightful: str):
        """A member: most often the one that a contract obeys."""
        fitting = [member for member in self.members if member == rightful]
        return self.rng.choice(fitting if fitting and self.rng.random() < 0.9 else self.members)

    def take_over(self) -> None:
        """Hand everything to another member, with the wait that it takes."""
        heir = self.rng.choice(self.members[1:])
        begun = [contract.transferOwnership(heir, sender=self.members[0]).timestamp for contract in self.contracts]
        self.world.mine_at(max(begun) + OWNERSHIP_DELAY)
        for contract in self.contracts:
            contract.acceptOwnership(sender=heir)
            assert contract.owner() == heir

    def renounce(self) -> None:
        for contract in self.contracts:
            owner = next(member for member in self.members if member == contract.owner())
            contract.renounceOwnership(sender=owner)
            assert contract.owner() == ZERO

    def _pause(self, _contract) -> str:
        paused = self.rng.random() < 0.8
        self.world.market.setRequestsPaused(paused, sender=self._who(self.world.market.owner()))
        return "paused" if paused else "resumed"

    def _transfer(self, contract) -> str:
        to = self.rng.choice([*self.members, *self.members, ZERO, contract.address, self.world.stakes.address])
        contract.transferOwnership(to, sender=self._who(contract.owner()))
        return "transferred"

    def _accept(self, contract) -> str:
        contract.acceptOwnership(sender=self._who(contract.pendingOwner()))
        return "accepted"

    def _register(self, _contract) -> str:
        self._models += 1
        model = ("bait", str(self._models), keccak(text="weights"), "q4", 1, 1, 1, "output_token")
        self.registry.register(model, sender=self._who(self.registry.owner()))
        return "registered"

    def _verifier(self, _contract) -> str:
        key, who = self.members[1], self._who(self.verifier.owner())
        if self.rng.random() < 0.5:
            self.verifier.attest(key, keccak(text="tiny"), self.world.now + 86_400, sender=who)
            return "attested"
        self.verifier.revoke(key, sender=who)
        return "revoked"


@pytest.fixture
def verifier(project, owner):
    return owner.deploy(project.AttestedKeyVerifier, owner)


@pytest.fixture
def make_gang(world, registry, verifier, accounts):
    return lambda seed: Gang(world, registry, verifier, [world.owner, *accounts[12:15]], seed)


class Victims:
    """Everybody else: requests in every state, credit, stake and bond, and each one's way to its money."""

    def __init__(self, world, gang: Gang) -> None:
        self.world, self.gang = world, gang
        world.market.deposit(world.requester, sender=world.requester, value=10**15)
        self.settled, self.cancelled, self.released, self.assigned, self.expired = (world.post() for _ in range(5))
        self.verified = world.post(mode=Mode.VERIFIER, verifier=gang.verifier.address)
        self.expected: Counter[str] = Counter({world.requester.address: 10**15})

    def credit_all(self, shares: Shares, *, alone: bool = False) -> None:
        world = self.world
        self.expected[world.requester.address] += shares.refund
        self.expected[world.node_owner.address] += shares.node + (shares.relayer if alone else 0)
        self.expected[world.relayer.address] += 0 if alone else shares.relayer

    def settle(self) -> None:
        world, answer = self.world, item(self.settled)
        receipt = world.submit(world.set_of([answer], world.record_round()))
        assert world.statuses(receipt) == [[ItemStatus.OK]]
        self.credit_all(world.shares_in(receipt, answer))

    def cancel(self) -> None:
        self.world.market.cancel(self.cancelled.request, sender=self.world.requester)

    def cancel_with_release(self) -> None:
        world, until = self.world, self.world.now + 60
        release = builders.sign_release(world.relayer_key, world.market.address, self.released.id, until)
        world.market.cancelWithRelease(self.released.request, until, release, sender=world.requester)
        self.expected[world.requester.address] += self.released.escrow

    def submit_assigned(self) -> None:
        world, posted = self.world, self.assigned
        answer, round_ = item(posted), 77  # that nobody recorded
        promise = builders.assignment(answer, world.relayer.address, world.node, round_, posted.deadline)
        signature = builders.sign(world.relayer_key, world.market.address, "Assignment", promise)
        built = _as_tuple(world.set_of([answer], round_).build())
        world.next_block_at(max(posted.deadline, world.now) + 1)
        receipt = world.market.submitAssigned(_as_tuple(promise), signature, built, sender=world.stranger)
        price = world.gas_price_paid_for(receipt)
        self.credit_all(builders.shares(posted, answer.reward, world.gas_terms.assigned, price), alone=True)

    def expire(self) -> None:
        world, over = self.world, [self.expired, self.cancelled, self.verified]
        ends_at = max(posted.deadline for posted in over) + GRACE
        world.next_block_at(max(world.now, ends_at) + 1)
        world.market.expire([posted.request for posted in over], sender=world.stranger)
        assert [world.status_of(posted) for posted in over] == [Status.EXPIRED] * 3
        self.expected[world.requester.address] += sum(posted.escrow for posted in over)

    def withdraw(self) -> None:
        world = self.world
        for account in (world.requester, world.node_owner, world.relayer):
            owed, before = self.expected[account.address], account.balance
            assert world.credit(account) == owed > 0
            receipt = world.market.withdraw(account, owed, sender=account)
            assert account.balance == before + owed - receipt.total_fees_paid
        assert world.market.balance == 0

    def begin_to_leave(self) -> None:
        world = self.world
        world.stakes.leaveMarket(world.node, world.market, sender=world.node_owner)
        world.stakes.beginUnbond(world.node, MIN_STAKE, sender=world.node_owner)
        world.stakes.beginUnbondRelayer(sender=world.relayer)

    def leave(self) -> None:
        world = self.world
        world.next_block_at(world.now + UNBOND_DELAY)
        before = world.stakes.balance
        (stake,) = world.stakes.withdrawStake(world.node, sender=world.node_owner).decode_logs(
            world.stakes.StakeWithdrawn
        )
        (bond,) = world.stakes.withdrawBond(sender=world.relayer).decode_logs(world.stakes.BondWithdrawn)
        assert (stake.amount, bond.amount) == (MIN_STAKE, MIN_BOND)
        assert world.stakes.balance == before - MIN_STAKE - MIN_BOND

    def steps(self) -> list[Callable[[], None]]:
        in_time = [self.settle, self.cancel, self.cancel_with_release]
        self.gang.rng.shuffle(in_time)
        return [*in_time, self.submit_assigned, self.expire, self.withdraw, self.begin_to_leave, self.leave]

    def all_get_out(self) -> None:
        self.gang.strike()
        for step in self.steps():
            step()
            self.gang.strike()


@pytest.mark.parametrize("seed", range(6))
def test_evil_owner__whatever_it_does__everybody_gets_out_to_the_wei(world, make_gang, seed):
    gang = make_gang(seed)
    Victims(world, gang).all_get_out()
    assert len(gang.done) >= 5, gang.done


@pytest.mark.parametrize("seed", range(6, 9))
def test_evil_owner__after_a_hand_over__everybody_gets_out_to_the_wei(world, make_gang, seed):
    gang = make_gang(seed)
    gang.take_over()
    victims = Victims(world, gang)
    victims.all_get_out()
    assert len(gang.done) >= 5, gang.done


@pytest.mark.parametrize("seed", range(9, 11))
def test_evil_owner__hands_over_while_all_is_open__everybody_gets_out_to_the_wei(world, make_gang, seed):
    """Three days pass, so nothing is in time any more: what is not paid goes back."""
    gang = make_gang(seed)
    victims = Victims(world, gang)
    victims.settle()
    gang.world.market.setRequestsPaused(True, sender=world.owner)
    gang.take_over()
    gang.strike()
    open_ones = [victims.cancelled, victims.released, victims.assigned, victims.expired, victims.verified]
    world.market.expire([posted.request for posted in open_ones], sender=world.stranger)
    victims.expected[world.requester.address] += sum(posted.escrow for posted in open_ones)
    for step in (victims.withdraw, victims.begin_to_leave, victims.leave):
        gang.strike()
        step()


def test_evil_owner__pauses_and_renounces__everybody_gets_out_to_the_wei(world, make_gang):
    gang = make_gang(99)
    victims = Victims(world, gang)
    world.market.setRequestsPaused(True, sender=world.owner)
    gang.renounce()
    victims.all_get_out()
    assert set(gang.done) == {"refused"}


def test_evil_owner__pauses_anew_for_ever__stops_new_requests_and_nothing_else(world, make_gang):
    gang = make_gang(7)
    victims = Victims(world, gang)
    for step in victims.steps():
        world.market.setRequestsPaused(True, sender=world.owner)
        with ape.reverts(world.market.RequestsPaused):
            world.market.requestInference(world.params(), b"", sender=world.stranger)
        step()


def test_evil_registrar__vouches_for_its_own_key__no_node_no_round_no_pay(world, make_gang):
    """It decides what requests that chose it take for proven, and still pays nobody but a node in the market."""
    gang = make_gang(3)
    victims = Victims(world, gang)
    thief = gang.members[1]
    gang.verifier.attest(thief, keccak(text="tiny"), world.now + 86_400, sender=world.owner)
    answer: Item = item(victims.verified)
    posted: Posted = victims.verified
    assert world.market.accountOf(thief).balance == 0
    built = world.set_of([answer], world.record_round(), key=thief.private_key, proofs=[b"x" * 65])
    assert world.statuses(world.submit(built)) == [[ItemStatus.NODE_NOT_JOINED]]
    assert world.status_of(posted) == Status.PENDING
    victims.all_get_out()
