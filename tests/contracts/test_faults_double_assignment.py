"""Two recorded decisions for a request and different nodes, of which the later does not supersede the earlier."""

from __future__ import annotations

import ape
import pytest

from tests.contracts.builders import ZERO
from tests.contracts.conftest import FAULT_SCHEDULE
from tests.contracts.trial import LOW, Fault, quorum, reason

RELAYER_WEI = FAULT_SCHEDULE[2]
THIRD = "0x" + "3c" * 20


def prove(trial, posted, first, second, relayer=None):
    return trial.prove("proveDoubleAssignment", posted.request, relayer or trial.world.relayer.address, first, second)


def in_one_round(trial, other_node, supersedes=(0, 0), **terms):
    posted = trial.world.post(**terms)
    recorded = trial.record(
        [
            trial.decision(posted, supersedesRound=supersedes[0]),
            trial.decision(posted, other_node, supersedesRound=supersedes[1]),
        ]
    )
    return posted, recorded.proven(posted, trial.world.node), recorded.proven(posted, other_node)


def in_two_rounds(trial, other_node, supersedes=0, between=0, **terms):
    posted = trial.world.post(**terms)
    early = trial.record([trial.decision(posted)])
    for _ in range(between):
        trial.record(trial.others(LOW))
    late = trial.record([trial.decision(posted, other_node, supersedesRound=supersedes)])
    return posted, early.proven(posted, trial.world.node), late.proven(posted, other_node)


def test_prove_double_assignment__one_round__costs_the_relayer(trial, other_node):
    posted, first, second = in_one_round(trial, other_node)
    before = trial.books(ZERO)
    receipt = prove(trial, posted, first, second)
    trial.assert_punished(
        receipt, before, Fault.DOUBLE_ASSIGNMENT, trial.world.relayer.address, posted, RELAYER_WEI, ZERO, 0
    )


def test_prove_double_assignment__two_rounds__costs_the_relayer(trial, other_node):
    posted, first, second = in_two_rounds(trial, other_node)
    prove(trial, posted, first, second)
    assert trial.faults.isProven(Fault.DOUBLE_ASSIGNMENT, trial.world.relayer, posted.id, ZERO)


def test_prove_double_assignment__supersedes_a_round_before_the_first__costs_the_relayer(trial, other_node):
    trial.record(trial.others(LOW))
    posted, first, second = in_two_rounds(trial, other_node, supersedes=1)
    prove(trial, posted, first, second)
    assert trial.faults.isProven(Fault.DOUBLE_ASSIGNMENT, trial.world.relayer, posted.id, ZERO)


@pytest.mark.parametrize("supersedes", [3, 2**64 - 1])
def test_prove_double_assignment__supersedes_a_round_to_come__costs_the_relayer(trial, other_node, supersedes):
    posted, first, second = in_two_rounds(trial, other_node, supersedes=supersedes)
    prove(trial, posted, first, second)
    assert trial.faults.isProven(Fault.DOUBLE_ASSIGNMENT, trial.world.relayer, posted.id, ZERO)


def test_prove_double_assignment__quorum_in_two_rounds__costs_the_relayer(trial, other_node):
    posted, first, second = in_two_rounds(trial, other_node, **quorum())
    prove(trial, posted, first, second)
    assert trial.faults.isProven(Fault.DOUBLE_ASSIGNMENT, trial.world.relayer, posted.id, ZERO)


# NOT PROVEN


@pytest.mark.parametrize("supersedes", [(0, 1), (1, 0), (1, 1)])
def test_prove_double_assignment__superseded_in_one_round__not_proven(trial, other_node, supersedes):
    posted, first, second = in_one_round(trial, other_node, supersedes)
    for pair in ((first, second), (second, first)):
        with ape.reverts(trial.faults.NotProven, reason=reason("superseded")):
            prove(trial, posted, *pair)


@pytest.mark.parametrize("supersedes", [1, 2])
def test_prove_double_assignment__superseded_later__not_proven(trial, other_node, supersedes):
    posted, first, second = in_two_rounds(trial, other_node, supersedes, between=1)
    with ape.reverts(trial.faults.NotProven, reason=reason("superseded")):
        prove(trial, posted, first, second)


def test_prove_double_assignment__third_superseding_the_second__is_no_fault_beside_the_first(trial, other_node):
    posted, first, _ = in_two_rounds(trial, other_node, supersedes=1)
    third = trial.record([trial.decision(posted, THIRD, supersedesRound=2)])
    with ape.reverts(trial.faults.NotProven, reason=reason("superseded")):
        prove(trial, posted, first, third.proven(posted, THIRD))


def test_prove_double_assignment__quorum_in_one_round__not_proven(trial, other_node):
    posted, first, second = in_one_round(trial, other_node, **quorum())
    with ape.reverts(trial.faults.NotProven, reason=reason("a quorum's round")):
        prove(trial, posted, first, second)


def test_prove_double_assignment__later_one_first__not_proven(trial, other_node):
    posted, first, second = in_two_rounds(trial, other_node)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in order")):
        prove(trial, posted, second, first)


def test_prove_double_assignment__one_decision_twice__not_proven(trial, other_node):
    posted, first, _ = in_one_round(trial, other_node)
    with ape.reverts(trial.faults.NotProven, reason=reason("one node")):
        prove(trial, posted, first, first)


def test_prove_double_assignment__one_node_in_two_rounds__not_proven(trial):
    posted, first, second = in_two_rounds(trial, trial.world.node)
    with ape.reverts(trial.faults.NotProven, reason=reason("one node")):
        prove(trial, posted, first, second)


@pytest.mark.parametrize("which", [0, 1])
def test_prove_double_assignment__decision_on_another_request__not_proven(trial, other_node, which):
    posted, *decisions = in_one_round(trial, other_node)
    other = trial.world.post()
    recorded = trial.record([trial.decision(other, other_node)])
    decisions[which] = recorded.proven(other, other_node)
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, *decisions)


@pytest.mark.parametrize("which", [0, 1])
def test_prove_double_assignment__not_assigned__not_proven(trial, other_node, which):
    posted = trial.world.post()
    kinds = [0, 0]
    kinds[which] = 1
    recorded = trial.record([trial.decision(posted, kind=kinds[0]), trial.decision(posted, other_node, kind=kinds[1])])
    with ape.reverts(trial.faults.NotProven, reason=reason("not assigned")):
        prove(trial, posted, recorded.proven(posted, trial.world.node), recorded.proven(posted, other_node))


@pytest.mark.parametrize("which", [0, 1])
def test_prove_double_assignment__decision_that_is_no_leaf__not_proven(trial, other_node, which):
    posted, *decisions = in_one_round(trial, other_node)
    decisions[which] |= {"index": decisions[1 - which]["index"]}
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, *decisions)


def test_prove_double_assignment__two_relayers_of_an_open_race__not_proven(trial, other_node, bonded_other_relayer):
    posted = trial.world.post(relayer=ZERO)
    ours = trial.record([trial.decision(posted)])
    theirs = trial.record([trial.decision(posted, other_node)], relayer=bonded_other_relayer)
    first, second = ours.proven(posted, trial.world.node), theirs.proven(posted, other_node)
    for relayer in (trial.world.relayer, bonded_other_relayer):
        with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
            prove(trial, posted, first, second, relayer.address)


def test_prove_double_assignment__again__already_proven(trial, other_node):
    posted, first, second = in_one_round(trial, other_node)
    prove(trial, posted, first, second)
    with ape.reverts(trial.faults.AlreadyProven, fault=Fault.DOUBLE_ASSIGNMENT, requestId=posted.id):
        prove(trial, posted, second, first)
