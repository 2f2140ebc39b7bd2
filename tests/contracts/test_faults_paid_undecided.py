"""A relayer's round that lacks the decision for a node that was paid in it."""

from __future__ import annotations

import ape
import pytest
from ape.exceptions import VirtualMachineError
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import ZERO, Tree
from tests.contracts.conftest import FAULT_SCHEDULE, NODE_KEY, OTHER_NODE_KEY
from tests.contracts.trial import HIGH, LOW, NO_DECISION, Fault, quorum, reason

RELAYER_WEI = FAULT_SCHEDULE[2]


def prove(trial, posted, paid, absence, node_index=0, **kwargs):
    return trial.prove("provePaidUndecided", posted.request, paid, node_index, absence, **kwargs)


@pytest.fixture
def paid_beside(trial):
    """A request that was paid in a round with these other leaves, without a decision on it."""

    def make(*others: bytes):
        posted = trial.world.post()
        recorded = trial.record(trial.others(*others))
        return posted, recorded, trial.pay(posted, recorded.round)

    return make


@pytest.mark.parametrize(
    "others", [(LOW,), (HIGH,), (LOW, HIGH), (LOW, keccak(b"x"), HIGH)], ids=["last", "first", "between", "of four"]
)
def test_prove_paid_undecided__absent__costs_the_relayer(trial, paid_beside, others):
    posted, recorded, paid = paid_beside(*others)
    world = trial.world
    before = trial.books(world.requester.address)
    receipt = prove(trial, posted, paid, recorded.absence(posted, world.node))
    trial.assert_punished(
        receipt,
        before,
        Fault.UNDECIDED,
        world.relayer.address,
        posted,
        RELAYER_WEI,
        world.requester.address,
        posted.params["maxReward"],
    )
    assert world.stakes.relayerOf(world.relayer).faults == 1


def test_prove_paid_undecided__another_node_was_assigned__costs_the_relayer(trial, other_node):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted, other_node)])
    paid = trial.pay(posted, recorded.round)
    prove(trial, posted, paid, recorded.absence(posted, trial.world.node))
    assert trial.faults.isProven(Fault.UNDECIDED, trial.world.relayer, posted.id, ZERO)


def test_prove_paid_undecided__one_node_of_a_quorum__costs_the_relayer(trial, other_node):
    posted = trial.world.post(**quorum())
    recorded = trial.record([trial.decision(posted)])
    paid = trial.pay(posted, recorded.round, keys=[NODE_KEY, OTHER_NODE_KEY])
    nodes = paid["nodes"]
    index = nodes.index(other_node)
    with ape.reverts(trial.faults.NotProven):
        prove(trial, posted, paid, recorded.absence(posted, other_node), node_index=1 - index)
    prove(trial, posted, paid, recorded.absence(posted, other_node), node_index=index)
    assert trial.faults.isProven(Fault.UNDECIDED, trial.world.relayer, posted.id, ZERO)


def test_prove_paid_undecided__no_such_node__reverts(trial, paid_beside):
    posted, recorded, paid = paid_beside(LOW)
    with pytest.raises(VirtualMachineError, match="0x32"):
        prove(trial, posted, paid, recorded.absence(posted, trial.world.node), node_index=1)


# NOT PROVEN


@pytest.mark.parametrize(
    "changes",
    [{"resultHash": keccak(b"other")}, {"round": 2}, {"settledAt": 1}, {"nodes": []}],
    ids=lambda changes: next(iter(changes)),
)
def test_prove_paid_undecided__not_what_was_paid__not_proven(trial, paid_beside, changes):
    posted, recorded, paid = paid_beside(LOW)
    with ape.reverts(trial.faults.NotProven, reason=reason("not the paid result")):
        prove(trial, posted, paid | changes, recorded.absence(posted, trial.world.node))


def test_prove_paid_undecided__pending__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record(trial.others(LOW))
    ref = {
        "resultHash": keccak(b"x"),
        "relayer": trial.world.relayer.address,
        "round": recorded.round,
        "nodes": [trial.world.node],
        "settledAt": trial.world.now,
    }
    with ape.reverts(trial.faults.NotProven, reason=reason("not the paid result")):
        prove(trial, posted, ref, recorded.absence(posted, trial.world.node))


def test_prove_paid_undecided__another_request__not_proven(trial, paid_beside):
    _, recorded, paid = paid_beside(LOW)
    other = trial.world.post()
    with ape.reverts(trial.faults.NotProven, reason=reason("not the paid result")):
        prove(trial, other, paid, recorded.absence(other, trial.world.node))


def test_prove_paid_undecided__absence_in_another_round__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted)])
    empty_of_it = trial.record(trial.others(LOW))
    paid = trial.pay(posted, recorded.round)
    with ape.reverts(trial.faults.NotProven, reason=reason("another round")):
        prove(trial, posted, paid, empty_of_it.absence(posted, trial.world.node))


@pytest.mark.parametrize("others", [(), (LOW,), (HIGH,), (LOW, HIGH), (LOW, keccak(b"x"), HIGH)], ids=len)
def test_prove_paid_undecided__decided__no_place_proves_it_absent(trial, others):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted), *trial.others(*others)])
    paid = trial.pay(posted, recorded.round)
    for index in range(len(recorded.tree.decisions) + 2):
        with ape.reverts(trial.faults.NotProven):
            prove(trial, posted, paid, recorded.absence_at(min(index, len(others) + 1)) | {"index": index})


@pytest.mark.parametrize("record", ["its own", "recorded"])
def test_prove_paid_undecided__record_of_nothing__not_proven(trial, record):
    """Anybody can make up a record without leaves, in which every decision is absent."""
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted)])
    paid = trial.pay(posted, recorded.round)
    base = recorded.record if record == "recorded" else builders.record(recorded.round)
    nothing = base | {"assigned": 0, "skipped": 0, "tooLate": 0}
    absence = {
        "record": nothing,
        "index": 0,
        "left": NO_DECISION,
        "leftProof": [],
        "right": NO_DECISION,
        "rightProof": [],
    }
    with ape.reverts(trial.faults.NotProven):
        prove(trial, posted, paid, absence)


def test_prove_paid_undecided__made_up_record__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted)])
    paid = trial.pay(posted, recorded.round)
    tree = Tree(trial.others(LOW))
    made_up = builders.record(recorded.round, tree)
    absence = recorded.absence_at(1) | {"record": made_up, "left": tree.decisions[0], "leftProof": tree.proof(0)}
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, paid, absence)


@pytest.mark.parametrize(
    ("index", "why"),
    [(0, "right is not after"), (2, "left is not before"), (3, "left is not before"), (4, "beyond the record")],
)
def test_prove_paid_undecided__another_place__not_proven(trial, paid_beside, index, why):
    posted, recorded, paid = paid_beside(LOW, b"\xfe" * 32, HIGH)
    absence = recorded.absence_at(min(index, 3)) | {"index": index}
    with ape.reverts(trial.faults.NotProven, reason=reason(why)):
        prove(trial, posted, paid, absence)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("wrong", ["decision", "proof"])
def test_prove_paid_undecided__neighbour_that_is_no_leaf__not_proven(trial, paid_beside, side, wrong):
    posted, recorded, paid = paid_beside(LOW, HIGH)
    absence = recorded.absence(posted, trial.world.node)
    if wrong == "decision":
        absence |= {side: absence[side] | {"reward": 1}}
    else:
        absence |= {f"{side}Proof": [keccak(b"x")]}
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, paid, absence)


def test_prove_paid_undecided__neighbours_that_are_not_next_to_each_other__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted), *trial.others(LOW, HIGH)])
    paid = trial.pay(posted, recorded.round)
    leaves, tree = recorded.tree.decisions, recorded.tree
    absence = {
        "record": recorded.record,
        "index": 1,
        "left": leaves[0],
        "leftProof": tree.proof(0),
        "right": leaves[2],
        "rightProof": tree.proof(2),
    }
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, paid, absence)


def test_prove_paid_undecided__again__already_proven(trial, paid_beside):
    posted, recorded, paid = paid_beside(LOW)
    absence = recorded.absence(posted, trial.world.node)
    prove(trial, posted, paid, absence)
    before = trial.world.stakes.balance
    with ape.reverts(trial.faults.AlreadyProven, requestId=posted.id):
        prove(trial, posted, paid, absence, sender=trial.world.owner)
    assert trial.world.stakes.balance == before
