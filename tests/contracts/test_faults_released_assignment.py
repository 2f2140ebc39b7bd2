"""A request that was cancelled on its relayer's release, and the relayer's signed assignment of it."""

from __future__ import annotations

import ape
import pytest

from tests.contracts import builders
from tests.contracts.builders import ZERO
from tests.contracts.conftest import FAULT_SCHEDULE, NODE_KEY
from tests.contracts.trial import Fault, reason

RELAYER_WEI = FAULT_SCHEDULE[2]


def prove(trial, posted, assignment=None, key=None):
    word = assignment or trial.assignment(posted, 1)
    return trial.prove("proveReleasedAssignment", posted.request, word, trial.sign_assignment(word, key))


def test_prove_released_assignment__released_though_assigned__costs_the_relayer(trial):
    world = trial.world
    posted = world.post()
    trial.release(posted)
    before = trial.books(world.node_owner.address)
    receipt = prove(trial, posted)
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


# NOT PROVEN


def test_prove_released_assignment__pending__not_proven(trial):
    posted = trial.world.post()
    with ape.reverts(trial.faults.NotProven, reason=reason("not released")):
        prove(trial, posted)


@pytest.mark.parametrize("ending", ["settled", "expired", "cancelled without a release"])
def test_prove_released_assignment__ended_otherwise__not_proven(trial, ending):
    world = trial.world
    posted = world.post()
    if ending == "settled":
        trial.pay(posted, trial.record([trial.decision(posted)]).round)
    elif ending == "expired":
        trial.end(posted)
    else:
        world.market.cancel(tuple(posted.request.values()), sender=world.requester)
        world.next_block_at(world.now + builders.GRACE + 1)
        world.market.expire([tuple(posted.request.values())], sender=world.stranger)
    with ape.reverts(trial.faults.NotProven, reason=reason("not released")):
        prove(trial, posted)


def test_prove_released_assignment__of_another_relayer__not_proven(trial, bonded_other_relayer):
    """It had no part in the release."""
    posted = trial.world.post()
    trial.release(posted)
    word = trial.assignment(posted, 1, relayer=bonded_other_relayer)
    with ape.reverts(trial.faults.NotProven, reason=reason("another relayer")):
        prove(trial, posted, word, bonded_other_relayer.private_key)


def test_prove_released_assignment__open_race__not_proven(trial):
    posted = trial.world.post(relayer=ZERO)
    with ape.reverts(trial.faults.NotProven, reason=reason("another relayer")):
        prove(trial, posted)


def test_prove_released_assignment__another_request__not_proven(trial):
    posted, other = trial.world.post(), trial.world.post()
    trial.release(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("another request")):
        prove(trial, posted, trial.assignment(other, 1))


def test_prove_released_assignment__signed_by_the_node__not_proven(trial):
    posted = trial.world.post()
    trial.release(posted)
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, key=NODE_KEY)


def test_prove_released_assignment__again__already_proven(trial):
    posted = trial.world.post()
    trial.release(posted)
    prove(trial, posted)
    with ape.reverts(trial.faults.AlreadyProven, fault=Fault.RELEASED, requestId=posted.id):
        prove(trial, posted, trial.assignment(posted, 2))
