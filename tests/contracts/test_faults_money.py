"""Where the wei of a punishment go, whatever is left of the stake and whoever proves it (I33)."""

from __future__ import annotations

import ape
import pytest

from tests.contracts.builders import ETHER, GWEI, ZERO
from tests.contracts.conftest import FAULT_SCHEDULE, MIN_BOND, MIN_STAKE, UNBOND_DELAY
from tests.contracts.trial import BOUNTY_BPS, PROOF_GAS, TIP_CAP, Fault, reason

NOBODY = "0x000000000000000000000000000000000000dEaD"

MISSED_WEI, EQUIVOCATION_WEI, RELAYER_WEI = FAULT_SCHEDULE


def equivocate(trial, posted, **kwargs):
    results = [trial.result(posted, b"yes"), trial.result(posted, b"no")]
    return trial.prove("proveEquivocation", posted.request, trial.world.node, results, **kwargs)


def release(trial, posted, **kwargs):
    word = trial.assignment(posted, 1)
    return trial.prove("proveReleasedAssignment", posted.request, word, trial.sign_assignment(word), **kwargs)


def proven_in(trial, receipt):
    (event,) = receipt.decode_logs(trial.faults.FaultProven)
    return event


@pytest.fixture
def base_fee(world):
    """Sets the base fee of the next block. Anvil would keep it beyond what it takes back after a test."""
    yield world.next_block_base_fee
    world.next_block_base_fee(GWEI)
    world.chain.mine()


# THE CONTRACT'S TERMS


def test_faults__deployed__has_the_terms_it_was_given(trial):
    faults, world = trial.faults, trial.world
    assert (faults.MISSED_WEI(), faults.EQUIVOCATION_WEI(), faults.RELAYER_WEI()) == FAULT_SCHEDULE
    assert (faults.STAKES(), faults.SCHEDULE_LOG(), faults.MARKET()) == (world.stakes, world.log, world.market)
    assert (faults.BOUNTY_BPS(), faults.PROOF_GAS(), faults.TIP_CAP()) == (BOUNTY_BPS, PROOF_GAS, TIP_CAP)
    assert world.stakes.FAULTS() == faults.address


def test_faults__wei_from_anybody_else__not_proven(trial):
    with ape.reverts(trial.faults.NotProven, reason=reason("not the stake manager")):
        trial.world.stranger.transfer(trial.faults, 1)


def test_is_proven__another_fault_culprit_or_request__is_false(trial):
    posted, other = trial.world.post(), trial.world.post()
    equivocate(trial, posted)
    asked = [
        (fault, culprit, request, node)
        for fault in Fault
        for culprit in (trial.world.node, trial.world.relayer.address)
        for request in (posted.id, other.id)
        for node in (ZERO, trial.world.node)
    ]
    proven = [each for each in asked if trial.faults.isProven(*each)]
    assert proven == [(Fault.EQUIVOCATION, trial.world.node, posted.id, ZERO)]


# BOUNTY


@pytest.mark.parametrize(
    ("fault", "amount"),
    [
        (Fault.MISSED, MISSED_WEI),
        (Fault.EQUIVOCATION, EQUIVOCATION_WEI),
        (Fault.UNDECIDED, RELAYER_WEI),
        (Fault.CONTRADICTED, RELAYER_WEI),
        (Fault.DOUBLE_ASSIGNMENT, RELAYER_WEI),
        (Fault.RELEASED, RELAYER_WEI),
    ],
)
@pytest.mark.parametrize(
    ("price_gwei", "base_gwei", "paid_gwei"), [(1, 1, 1), (3, 1, 3), (50, 1, 3), (1_000_000, 1_000_000, 1_000_000)]
)
def test_bounty_of__any_fault_and_price__is_a_tenth_and_the_gas_up_to_half(
    trial, base_fee, fault, amount, price_gwei, base_gwei, paid_gwei
):
    base_fee(base_gwei * GWEI)
    trial.world.chain.mine()
    call = {
        "to": trial.faults.address,
        "data": trial.faults.bountyOf.encode_input(fault).hex(),
        "gasPrice": hex(price_gwei * GWEI),
        "from": trial.world.owner.address,
    }
    trial.world.provider.set_balance(trial.world.owner.address, 10**30)
    answer = trial.world.provider.make_request("eth_call", [call, "latest"])
    expected = min(amount // 10 + PROOF_GAS * paid_gwei * GWEI, amount // 2)
    assert int(answer, 16) == expected


@pytest.mark.parametrize("price_gwei", [2, 3, 100])
def test_prove__any_price__pays_a_tenth_and_the_gas_at_no_more_than_the_cap(trial, base_fee, price_gwei):
    posted = trial.world.post()
    base_fee(GWEI)
    receipt = equivocate(trial, posted, max_fee=price_gwei * GWEI, max_priority_fee=price_gwei * GWEI - GWEI)
    paid = min(price_gwei, 3) * GWEI
    assert proven_in(trial, receipt).bounty == EQUIVOCATION_WEI // 10 + PROOF_GAS * paid


def test_prove__dear_gas__bounty_is_half_and_nothing_is_left_for_the_victim(trial, base_fee):
    posted = trial.world.post()
    base_fee(10_000 * GWEI)
    trial.world.provider.set_balance(trial.world.stranger.address, 10**24)
    receipt = equivocate(trial, posted, max_fee=20_000 * GWEI, max_priority_fee=GWEI)
    event = proven_in(trial, receipt)
    assert (event.bounty, event.compensation) == (EQUIVOCATION_WEI // 2, 0)


# WHAT IS LEFT OF STAKE AND BOND


@pytest.mark.parametrize("left", [EQUIVOCATION_WEI - 1, 10**15, 3, 1, 0])
def test_prove__less_stake_than_it_costs__shares_what_there_is(trial, left):
    world = trial.world
    taken = 0
    while MIN_STAKE - taken > EQUIVOCATION_WEI:
        taken += proven_in(trial, equivocate(trial, world.post())).slashed
    remaining = MIN_STAKE - taken
    if remaining != left:
        world.stakes.beginUnbond(world.node, remaining - left, sender=world.node_owner)
        world.next_block_at(world.now + UNBOND_DELAY + 1)
        world.stakes.withdrawStake(world.node, sender=world.node_owner)
    posted = world.post()
    before = trial.books(world.requester.address)
    receipt = equivocate(trial, posted)
    trial.assert_punished(
        receipt,
        before,
        Fault.EQUIVOCATION,
        world.node,
        posted,
        left,
        world.requester.address,
        posted.params["maxReward"],
    )


def test_prove__all_of_the_stake_is_unbonding__is_taken_from_it(trial):
    world = trial.world
    posted = world.post()
    world.stakes.beginUnbond(world.node, MIN_STAKE, sender=world.node_owner)
    equivocate(trial, posted)
    node = world.stakes.nodeOf(world.node)
    assert (node.stake, node.unbonding) == (MIN_STAKE - EQUIVOCATION_WEI, MIN_STAKE - EQUIVOCATION_WEI)


def test_prove__left_the_market_and_still_unbonding__is_taken(trial):
    world = trial.world
    posted = world.post()
    world.stakes.leaveMarket(world.node, world.market, sender=world.node_owner)
    world.stakes.beginUnbond(world.node, MIN_STAKE, sender=world.node_owner)
    world.mine_at(world.now + UNBOND_DELAY + 1)
    equivocate(trial, posted)
    assert world.stakes.nodeOf(world.node).stake == MIN_STAKE - EQUIVOCATION_WEI


def test_prove__relayer_that_is_leaving__is_taken_from_its_bond(trial):
    world = trial.world
    posted = world.post()
    trial.release(posted)
    world.stakes.beginUnbondRelayer(sender=world.relayer)
    release(trial, posted)
    assert world.stakes.relayerOf(world.relayer).bond == MIN_BOND - RELAYER_WEI


def test_prove__more_faults_than_the_bond_covers__never_takes_more(trial):
    world = trial.world
    taken = []
    for _ in range(MIN_BOND // RELAYER_WEI + 2):
        posted = world.post()
        trial.release(posted)
        taken.append(proven_in(trial, release(trial, posted)).slashed)
    assert taken == [RELAYER_WEI] * (MIN_BOND // RELAYER_WEI) + [0, 0]
    assert world.stakes.relayerOf(world.relayer).bond == 0
    assert not world.stakes.isBonded(world.relayer)


def test_prove__relayer_without_a_bond__takes_nothing_and_is_remembered(trial, bonded_other_relayer):
    world = trial.world
    world.stakes.beginUnbondRelayer(sender=bonded_other_relayer)
    world.next_block_at(world.now + UNBOND_DELAY)
    world.stakes.withdrawBond(sender=bonded_other_relayer)
    posted = world.post(relayer=bonded_other_relayer.address)
    trial.release(posted, bonded_other_relayer)
    word = trial.assignment(posted, 1, relayer=bonded_other_relayer)
    signature = trial.sign_assignment(word, bonded_other_relayer.private_key)
    before = trial.books(world.node_owner.address)
    receipt = trial.prove("proveReleasedAssignment", posted.request, word, signature)
    trial.assert_punished(
        receipt,
        before,
        Fault.RELEASED,
        bonded_other_relayer.address,
        posted,
        0,
        world.node_owner.address,
        10**15,
        node=world.node,
    )


# WHO PROVES IT


def test_prove__culprit_that_is_reporter_and_victim__loses_half_for_good(trial):
    """Its own bounty and compensation are no way to have stake back before its time."""
    world = trial.world
    posted = world.post(requester=world.node_owner, maxReward=ETHER)
    before = world.credit(world.node_owner)
    receipt = equivocate(trial, posted, sender=world.node_owner)
    event = proven_in(trial, receipt)
    assert (event.reporter, event.victim) == (world.node_owner, world.node_owner)
    assert world.credit(world.node_owner) - before == EQUIVOCATION_WEI // 2
    assert world.stakes.nodeOf(world.node).stake == MIN_STAKE - EQUIVOCATION_WEI


def test_prove__credit__is_withdrawn_as_any_other(trial):
    world = trial.world
    posted = world.post()
    bounty = proven_in(trial, equivocate(trial, posted)).bounty
    before = world.provider.get_balance(NOBODY)
    world.market.withdrawTo(NOBODY, bounty, sender=world.stranger)
    assert world.provider.get_balance(NOBODY) - before == bounty


def test_prove__requests_are_paused__is_paid_all_the_same(trial):
    world = trial.world
    posted = world.post()
    world.market.setRequestsPaused(True, sender=world.owner)
    equivocate(trial, posted)
    assert trial.faults.isProven(Fault.EQUIVOCATION, world.node, posted.id, ZERO)
