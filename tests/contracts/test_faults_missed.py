"""A node's miss: its accept, the recorded assignment, and a request that expired uncancelled."""

from __future__ import annotations

import ape
import pytest
from eth_account import Account

from tests.contracts import builders
from tests.contracts.builders import ETHER, ZERO, Mode
from tests.contracts.conftest import FAULT_SCHEDULE, MIN_STAKE, OTHER_NODE_KEY, UNBOND_DELAY
from tests.contracts.trial import HIGH, LOW, Fault, quorum, reason

MISSED_WEI = FAULT_SCHEDULE[0]


def prove(trial, posted, recorded, accept=None, deadline=None, relayer=None, proven=None, **kwargs):
    deadline = posted.deadline if deadline is None else deadline
    return trial.prove(
        "proveMissed",
        posted.request,
        relayer or trial.world.relayer.address,
        deadline,
        accept if accept is not None else trial.accept(posted, recorded.round, deadline),
        proven or recorded.proven(posted, trial.world.node),
        **kwargs,
    )


def assigned(trial, **fields):
    posted = trial.world.post(**fields)
    return posted, trial.record([trial.decision(posted), *trial.others(LOW, HIGH)])


def test_prove_missed__accepted_and_silent__costs_the_node(trial):
    world = trial.world
    posted, recorded = assigned(trial)
    trial.end(posted)
    before = trial.books(world.requester.address)
    receipt = prove(trial, posted, recorded)
    trial.assert_punished(
        receipt, before, Fault.MISSED, world.node, posted, MISSED_WEI, world.requester.address, 10**15
    )
    node = world.stakes.nodeOf(world.node)
    assert (node.stake, node.misses, node.faults) == (MIN_STAKE - MISSED_WEI, 1, 0)


def test_prove_missed__recorded_at_the_deadline__costs_the_node(trial):
    posted = trial.world.post()
    trial.world.next_block_at(posted.deadline)
    recorded = trial.record([trial.decision(posted)])
    trial.end(posted)
    prove(trial, posted, recorded)
    assert trial.faults.isProven(Fault.MISSED, trial.world.node, posted.id, ZERO)


def test_prove_missed__accepted_for_an_earlier_time__costs_the_node(trial):
    posted, recorded = assigned(trial)
    trial.end(posted)
    prove(trial, posted, recorded, deadline=posted.deadline - 5)
    assert trial.faults.isProven(Fault.MISSED, trial.world.node, posted.id, ZERO)


def test_prove_missed__open_race__not_proven(trial):
    """Its relayer may let it go, and the node cannot settle by itself."""
    posted, recorded = assigned(trial, relayer=builders.ZERO)
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("another relayer")):
        prove(trial, posted, recorded)


def test_prove_missed__two_nodes_one_after_the_other__costs_both(trial, other_node):
    world = trial.world
    posted = world.post()
    recorded = trial.record([trial.decision(posted), trial.decision(posted, other_node, supersedesRound=1)])
    trial.end(posted)
    for node, key in ((world.node, world.node_key), (other_node, OTHER_NODE_KEY)):
        accept = trial.accept(posted, recorded.round, key=key)
        prove(trial, posted, recorded, accept, proven=recorded.proven(posted, node))
        assert world.stakes.nodeOf(node).misses == 1


# NOT PROVEN


def test_prove_missed__pending_still__not_proven(trial):
    posted, recorded = assigned(trial)
    trial.world.mine_at(posted.deadline + builders.GRACE + 1)
    with ape.reverts(trial.faults.NotProven, reason=reason("not expired uncancelled")):
        prove(trial, posted, recorded)


def test_prove_missed__settled__not_proven(trial):
    posted, recorded = assigned(trial)
    trial.pay(posted, recorded.round)
    with ape.reverts(trial.faults.NotProven, reason=reason("not expired uncancelled")):
        prove(trial, posted, recorded)


def test_prove_missed__cancelled_then_expired__not_proven(trial):
    world = trial.world
    posted, recorded = assigned(trial)
    world.market.cancel(tuple(posted.request.values()), sender=world.requester)
    world.next_block_at(world.now + builders.GRACE + 1)
    world.market.expire([tuple(posted.request.values())], sender=world.stranger)
    with ape.reverts(trial.faults.NotProven, reason=reason("not expired uncancelled")):
        prove(trial, posted, recorded)


def test_prove_missed__released__not_proven(trial):
    posted, recorded = assigned(trial)
    trial.release(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not expired uncancelled")):
        prove(trial, posted, recorded)


def test_prove_missed__never_posted__not_proven(trial):
    posted = trial.world.prepare()
    recorded = trial.record([trial.decision(posted)])
    with ape.reverts(trial.faults.NotProven, reason=reason("not expired uncancelled")):
        prove(trial, posted, recorded)


def test_prove_missed__quorum__not_proven(trial):
    posted, recorded = assigned(trial, **quorum())
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not of signature mode")):
        prove(trial, posted, recorded)


def test_prove_missed__verifier__not_proven(trial):
    posted, recorded = assigned(trial, mode=Mode.VERIFIER, verifier=trial.world.log.address)
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not of signature mode")):
        prove(trial, posted, recorded)


def test_prove_missed__decision_of_another_request__not_proven(trial):
    posted, recorded = assigned(trial)
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, recorded, proven=recorded.proven_at(0))


@pytest.mark.parametrize("kind", [1, 2])
def test_prove_missed__decided_otherwise__not_proven(trial, kind):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted, kind=kind)])
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not assigned")):
        prove(trial, posted, recorded)


@pytest.mark.parametrize(
    "changes", [{"index": 0}, {"proof": []}, {"record": builders.record(1)}], ids=lambda changes: next(iter(changes))
)
def test_prove_missed__decision_that_is_no_leaf__not_proven(trial, changes):
    posted, recorded = assigned(trial)
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, recorded, proven=recorded.proven(posted, trial.world.node, **changes))


def test_prove_missed__reward_that_was_not_recorded__not_proven(trial):
    posted, recorded = assigned(trial)
    trial.end(posted)
    decision = trial.decision(posted, reward=ETHER)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, recorded, proven=recorded.proven(posted, trial.world.node, decision=decision))


def test_prove_missed__recorded_after_the_deadline__not_proven(trial):
    posted = trial.world.post()
    trial.world.next_block_at(posted.deadline + 1)
    recorded = trial.record([trial.decision(posted)])
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("recorded too late")):
        prove(trial, posted, recorded)


def test_prove_missed__accepted_for_a_later_time__not_proven(trial):
    posted, recorded = assigned(trial)
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("accepted for later")):
        prove(trial, posted, recorded, deadline=posted.deadline + 1)


def test_prove_missed__another_relayers_round__not_proven(trial, bonded_other_relayer):
    posted, recorded = assigned(trial, relayer=builders.ZERO)
    theirs = trial.record([trial.decision(posted)], relayer=bonded_other_relayer)
    trial.end(posted)
    accept = trial.accept(posted, recorded.round)
    with ape.reverts(trial.faults.NotProven, reason=reason("another relayer")):
        prove(trial, posted, theirs, accept, relayer=bonded_other_relayer.address)


@pytest.mark.parametrize("wrong", ["key", "round", "deadline", "request", "market", "none", "short"])
def test_prove_missed__accept_of_something_else__not_proven(trial, wrong):
    world = trial.world
    posted, recorded = assigned(trial)
    other = world.post()
    trial.end(posted)
    message = {"requestId": posted.id, "relayer": world.relayer.address, "round": 1, "deadline": posted.deadline}
    signatures = {
        "key": trial.accept(posted, 1, key=OTHER_NODE_KEY),
        "round": trial.accept(posted, 2),
        "deadline": trial.accept(posted, 1, posted.deadline - 1),
        "request": trial.accept(other, 1, posted.deadline),
        "market": builders.sign(world.node_key, trial.faults.address, "Accept", message),
        "none": b"",
        "short": trial.accept(posted, 1)[:64],
    }
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, recorded, signatures[wrong])


def test_prove_missed__node_that_left_and_cannot_be_paid_any_more__not_proven(trial):
    world = trial.world
    world.stakes.leaveMarket(world.node, world.market, sender=world.node_owner)
    left = world.now + UNBOND_DELAY
    world.mine_at(left - 100)
    posted, recorded = assigned(trial, deadline=left + 600)
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not a member")):
        prove(trial, posted, recorded)


def test_prove_missed__node_that_never_joined__not_proven(trial):
    key = "0x" + "c3" * 32
    node = Account.from_key(key).address
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted, node)])
    trial.end(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not a member")):
        prove(trial, posted, recorded, trial.accept(posted, 1, key=key), proven=recorded.proven(posted, node))


def test_prove_missed__again__already_proven(trial):
    posted, recorded = assigned(trial)
    trial.end(posted)
    prove(trial, posted, recorded)
    with ape.reverts(trial.faults.AlreadyProven, fault=Fault.MISSED, culprit=trial.world.node, requestId=posted.id):
        prove(trial, posted, recorded, sender=trial.world.owner)
