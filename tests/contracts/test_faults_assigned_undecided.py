"""A relayer's round that lacks the decision for an assignment that the relayer signed."""

from __future__ import annotations

import ape
import pytest
from eth_account import Account
from eth_utils import keccak

from tests.contracts.builders import ZERO
from tests.contracts.conftest import FAULT_SCHEDULE, NODE_KEY
from tests.contracts.trial import HIGH, LOW, NO_DECISION, Fault, reason

RELAYER_WEI = FAULT_SCHEDULE[2]


def prove(trial, posted, recorded, signature=None, absence=None, assignment=None, **changes):
    word = assignment or trial.assignment(posted, recorded.round, **changes)
    return trial.prove(
        "proveAssignedUndecided",
        posted.request,
        word,
        trial.sign_assignment(word) if signature is None else signature,
        absence or recorded.absence(posted, word["node"]),
    )


@pytest.mark.parametrize("others", [(LOW,), (HIGH,), (LOW, HIGH)], ids=["last", "first", "between"])
def test_prove_assigned_undecided__left_out__costs_the_relayer(trial, others):
    world = trial.world
    posted = world.post()
    recorded = trial.record(trial.others(*others))
    before = trial.books(world.node_owner.address)
    receipt = prove(trial, posted, recorded)
    trial.assert_punished(
        receipt,
        before,
        Fault.UNDECIDED,
        world.relayer.address,
        posted,
        RELAYER_WEI,
        world.node_owner.address,
        10**15,
        node=world.node,
    )


def test_prove_assigned_undecided__another_node_is_on_record__costs_the_relayer(trial, other_node):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted, other_node)])
    prove(trial, posted, recorded)
    assert trial.faults.isProven(Fault.UNDECIDED, trial.world.relayer, posted.id, trial.world.node)


def test_prove_assigned_undecided__request_of_another_relayer__costs_the_one_that_signed(trial, other_relayer):
    posted = trial.world.post(relayer=other_relayer.address)
    recorded = trial.record(trial.others(LOW))
    prove(trial, posted, recorded)
    assert trial.faults.isProven(Fault.UNDECIDED, trial.world.relayer, posted.id, trial.world.node)


def test_prove_assigned_undecided__node_that_never_joined__nobody_is_compensated(trial):
    node = Account.from_key("0x" + "c3" * 32).address
    posted = trial.world.post()
    recorded = trial.record(trial.others(LOW))
    before = trial.books(ZERO)
    receipt = prove(trial, posted, recorded, node=node)
    trial.assert_punished(receipt, before, Fault.UNDECIDED, trial.world.relayer.address, posted, RELAYER_WEI, ZERO, 0, node)


# NOT PROVEN


def test_prove_assigned_undecided__recorded__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted), *trial.others(LOW)])
    for index in (0, 1, 2):
        with ape.reverts(trial.faults.NotProven):
            prove(trial, posted, recorded, absence=recorded.absence_at(index))


def test_prove_assigned_undecided__another_round__not_proven(trial):
    posted = trial.world.post()
    trial.record([trial.decision(posted)])
    second = trial.record(trial.others(LOW))
    with ape.reverts(trial.faults.NotProven, reason=reason("another round")):
        prove(trial, posted, second, assignment=trial.assignment(posted, 1))


def test_prove_assigned_undecided__another_request__not_proven(trial):
    posted, other = trial.world.post(), trial.world.post()
    recorded = trial.record(trial.others(LOW))
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, recorded, assignment=trial.assignment(other, 1), absence=recorded.absence_at(1))


@pytest.mark.parametrize("field", ["node", "round", "reward", "deadline"])
def test_prove_assigned_undecided__field_that_was_not_signed__not_proven(trial, field):
    posted = trial.world.post()
    trial.record([trial.decision(posted)])
    recorded = trial.record(trial.others(LOW))
    signed = trial.assignment(posted, 1 if field == "round" else 2)
    other = {"node": trial.world.owner.address, "round": 2, "reward": 1, "deadline": 1}
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, recorded, trial.sign_assignment(signed), assignment=signed | {field: other[field]})


@pytest.mark.parametrize("signature", [b"", b"\x01" * 65], ids=["none", "nobody's"])
def test_prove_assigned_undecided__unsigned__not_proven(trial, signature):
    posted = trial.world.post()
    recorded = trial.record(trial.others(LOW))
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, recorded, signature)


def test_prove_assigned_undecided__signed_by_the_node__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record(trial.others(LOW))
    word = trial.assignment(posted, recorded.round)
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, recorded, trial.sign_assignment(word, NODE_KEY))


def test_prove_assigned_undecided__record_of_nothing__not_proven(trial):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted)])
    nothing = recorded.record | {"assigned": 0, "decisionsRoot": keccak(b"")}
    absence = {
        "record": nothing,
        "index": 0,
        "left": NO_DECISION,
        "leftProof": [],
        "right": NO_DECISION,
        "rightProof": [],
    }
    with ape.reverts(trial.faults.NotProven):
        prove(trial, posted, recorded, absence=absence)


def test_prove_assigned_undecided__again__already_proven(trial):
    posted = trial.world.post()
    recorded = trial.record(trial.others(LOW))
    prove(trial, posted, recorded)
    with ape.reverts(trial.faults.AlreadyProven, culprit=trial.world.relayer.address, requestId=posted.id, node=trial.world.node):
        prove(trial, posted, recorded)


def test_prove_assigned_undecided__paid_in_it_too__is_the_requesters_besides(trial):
    """Else a node of the relayer's own could prove its own case first, and the requester's loss would stay."""
    posted = trial.world.post()
    recorded = trial.record(trial.others(LOW))
    paid = trial.pay(posted, recorded.round)
    prove(trial, posted, recorded)
    before = trial.books(trial.world.requester.address)
    receipt = trial.prove("provePaidUndecided", posted.request, paid, 0, recorded.absence(posted, trial.world.node))
    loss = posted.params["maxReward"]
    requester = trial.world.requester.address
    trial.assert_punished(
        receipt, before, Fault.UNDECIDED, trial.world.relayer.address, posted, RELAYER_WEI, requester, loss
    )


def test_prove_assigned_undecided__of_two_nodes__is_a_fault_against_each(trial, other_node):
    world = trial.world
    posted = world.post()
    recorded = trial.record(trial.others(LOW))
    prove(trial, posted, recorded, node=other_node)
    assert not trial.faults.isProven(Fault.UNDECIDED, world.relayer, posted.id, world.node)
    before = trial.books(world.node_owner.address)
    receipt = prove(trial, posted, recorded)
    trial.assert_punished(
        receipt,
        before,
        Fault.UNDECIDED,
        world.relayer.address,
        posted,
        RELAYER_WEI,
        world.node_owner.address,
        10**15,
        node=world.node,
    )
