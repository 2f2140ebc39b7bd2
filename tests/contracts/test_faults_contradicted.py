"""A relayer's round whose decision has another reward than the assignment that the relayer signed."""

from __future__ import annotations

import ape
import pytest

from tests.contracts.conftest import FAULT_SCHEDULE, NODE_KEY
from tests.contracts.trial import LOW, Fault, reason

RELAYER_WEI = FAULT_SCHEDULE[2]
SIGNED, RECORDED = 10**15, 10**14


def prove(trial, posted, proven, assignment, key=None):
    signature = trial.sign_assignment(assignment, key)
    return trial.prove("proveContradicted", posted.request, assignment, signature, proven)


def decided(trial, reward=RECORDED, **fields):
    posted = trial.world.post()
    return posted, trial.record([trial.decision(posted, reward=reward, **fields), *trial.others(LOW)])


@pytest.mark.parametrize("recorded_reward", [RECORDED, SIGNED + 1])
def test_prove_contradicted__another_reward__costs_the_relayer(trial, recorded_reward):
    world = trial.world
    posted, recorded = decided(trial, recorded_reward)
    before = trial.books(world.node_owner.address)
    receipt = prove(trial, posted, recorded.proven(posted, world.node), trial.assignment(posted, 1))
    trial.assert_punished(
        receipt,
        before,
        Fault.CONTRADICTED,
        world.relayer.address,
        posted,
        RELAYER_WEI,
        world.node_owner.address,
        SIGNED,
        node=world.node,
    )


# NOT PROVEN


def test_prove_contradicted__the_same_reward__not_proven(trial):
    posted, recorded = decided(trial, SIGNED)
    with ape.reverts(trial.faults.NotProven, reason=reason("the same reward")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), trial.assignment(posted, 1))


def test_prove_contradicted__another_round__not_proven(trial):
    posted, recorded = decided(trial)
    with ape.reverts(trial.faults.NotProven, reason=reason("another round")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), trial.assignment(posted, 2))


def test_prove_contradicted__another_node__not_proven(trial, other_node):
    posted, recorded = decided(trial)
    with ape.reverts(trial.faults.NotProven, reason=reason("another node")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), trial.assignment(posted, 1, other_node))


def test_prove_contradicted__assignment_of_another_request__not_proven(trial):
    posted, recorded = decided(trial)
    other = trial.world.post()
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), trial.assignment(other, 1))


def test_prove_contradicted__decision_on_another_request__not_proven(trial):
    posted, recorded = decided(trial)
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, recorded.proven_at(0), trial.assignment(posted, 1))


def test_prove_contradicted__not_assigned__not_proven(trial):
    posted, recorded = decided(trial, kind=1)
    with ape.reverts(trial.faults.NotProven, reason=reason("not assigned")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), trial.assignment(posted, 1))


def test_prove_contradicted__decision_that_is_no_leaf__not_proven(trial):
    posted, recorded = decided(trial)
    made_up = trial.decision(posted, reward=5)
    proven = recorded.proven(posted, trial.world.node, decision=made_up)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, proven, trial.assignment(posted, 1))


def test_prove_contradicted__signed_by_another__not_proven(trial):
    posted, recorded = decided(trial)
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), trial.assignment(posted, 1), NODE_KEY)


def test_prove_contradicted__assignment_of_another_relayer__not_proven(trial, bonded_other_relayer):
    """What another relayer signed is on its own record."""
    posted, recorded = decided(trial)
    word = trial.assignment(posted, 1, relayer=bonded_other_relayer)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), word, bonded_other_relayer.private_key)


def test_prove_contradicted__again__already_proven(trial):
    posted, recorded = decided(trial)
    proven, word = recorded.proven(posted, trial.world.node), trial.assignment(posted, 1)
    prove(trial, posted, proven, word)
    with ape.reverts(trial.faults.AlreadyProven, fault=Fault.CONTRADICTED, requestId=posted.id):
        prove(trial, posted, proven, word | {"deadline": 1})
