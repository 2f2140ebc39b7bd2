"""A request that was cancelled on its relayer's release, and the relayer's recorded assignment of it."""

from __future__ import annotations

import ape
import pytest
from eth_account import Account

from tests.contracts.builders import ZERO
from tests.contracts.conftest import FAULT_SCHEDULE
from tests.contracts.trial import HIGH, LOW, Fault, reason

RELAYER_WEI = FAULT_SCHEDULE[2]


def prove(trial, posted, proven):
    return trial.prove("proveReleasedDecision", posted.request, proven)


def decided(trial, release=True, node=None, **fields):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted, node, **fields), *trial.others(LOW, HIGH)])
    if release:
        trial.release(posted)
    return posted, recorded.proven(posted, node or trial.world.node)


def test_prove_released_decision__released_though_decided__costs_the_relayer(trial):
    world = trial.world
    posted, proven = decided(trial)
    before = trial.books(world.node_owner.address)
    receipt = prove(trial, posted, proven)
    trial.assert_punished(
        receipt,
        before,
        Fault.RELEASED,
        world.relayer.address,
        posted,
        RELAYER_WEI,
        world.node_owner.address,
        10**15,
        node=world.node,
    )


def test_prove_released_decision__recorded_after_the_release__costs_the_relayer(trial):
    posted = trial.world.post()
    trial.release(posted)
    recorded = trial.record([trial.decision(posted)])
    prove(trial, posted, recorded.proven(posted, trial.world.node))
    assert trial.faults.isProven(Fault.RELEASED, trial.world.relayer, posted.id, trial.world.node)


def test_prove_released_decision__node_that_never_joined__nobody_is_compensated(trial):
    node = Account.from_key("0x" + "c3" * 32).address
    posted, proven = decided(trial, node=node)
    before = trial.books(ZERO)
    receipt = prove(trial, posted, proven)
    trial.assert_punished(receipt, before, Fault.RELEASED, trial.world.relayer.address, posted, RELAYER_WEI, ZERO, 0, node)


def test_prove_released_decision__huge_reward__compensation_leaves_half_to_burn(trial):
    world = trial.world
    posted, proven = decided(trial, reward=2**96 - 1)
    before = trial.books(world.node_owner.address)
    receipt = prove(trial, posted, proven)
    trial.assert_punished(
        receipt,
        before,
        Fault.RELEASED,
        world.relayer.address,
        posted,
        RELAYER_WEI,
        world.node_owner.address,
        2**96 - 1,
        node=world.node,
    )
    (event,) = receipt.decode_logs(trial.faults.FaultProven)
    assert event.bounty + event.compensation == RELAYER_WEI // 2


# NOT PROVEN


def test_prove_released_decision__not_released__not_proven(trial):
    posted, proven = decided(trial, release=False)
    with ape.reverts(trial.faults.NotProven, reason=reason("not released")):
        prove(trial, posted, proven)


@pytest.mark.parametrize("kind", [1, 2])
def test_prove_released_decision__not_assigned__not_proven(trial, kind):
    """A request that waits has decisions of other kinds, and may be released."""
    posted, proven = decided(trial, kind=kind)
    with ape.reverts(trial.faults.NotProven, reason=reason("not assigned")):
        prove(trial, posted, proven)


def test_prove_released_decision__on_another_request__not_proven(trial):
    posted, _ = decided(trial)
    _, other = decided(trial, release=False)
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, other)


def test_prove_released_decision__that_is_no_leaf__not_proven(trial):
    posted, proven = decided(trial)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, proven | {"decision": trial.decision(posted, reward=5)})


def test_prove_released_decision__of_another_relayer__not_proven(trial, bonded_other_relayer):
    posted = trial.world.post()
    theirs = trial.record([trial.decision(posted)], relayer=bonded_other_relayer)
    trial.release(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the record")):
        prove(trial, posted, theirs.proven(posted, trial.world.node))


def test_prove_released_decision__of_the_assignment_too__is_one_fault(trial):
    posted, proven = decided(trial)
    prove(trial, posted, proven)
    word = trial.assignment(posted, 1)
    with ape.reverts(trial.faults.AlreadyProven, fault=Fault.RELEASED, requestId=posted.id):
        trial.prove("proveReleasedAssignment", posted.request, word, trial.sign_assignment(word))
