"""A node's two signatures on different results of one request."""

from __future__ import annotations

import ape
import pytest
from eth_account import Account

from tests.contracts import builders
from tests.contracts.builders import ETHER, ZERO
from tests.contracts.conftest import FAULT_SCHEDULE, MIN_STAKE, OTHER_NODE_KEY, UNBOND_DELAY
from tests.contracts.trial import Fault, reason

EQUIVOCATION_WEI = FAULT_SCHEDULE[1]


def prove(trial, posted, *results, node=None, **kwargs):
    return trial.prove("proveEquivocation", posted.request, node or trial.world.node, list(results), **kwargs)


def two_of(trial, posted, **fields):
    return [trial.result(posted, answer, **fields) for answer in (b"yes", b"no")]


def rotate(trial, new_key: str = OTHER_NODE_KEY) -> str:
    """Gives the node another key; returns its address."""
    world = trial.world
    key = Account.from_key(new_key).address
    signature = builders.sign_registration(new_key, world.stakes.address, world.node_owner.address)
    world.stakes.rotateKey(world.node, key, signature, [world.market], sender=world.node_owner)
    return key


@pytest.mark.parametrize("first", ["alone", "in a set"])
@pytest.mark.parametrize("second", ["alone", "in a set"])
def test_prove_equivocation__two_results__costs_the_node(trial, first, second):
    world = trial.world
    posted = world.post()
    beside = {"alone": None, "in a set": [builders.item(world.post()) for _ in range(2)]}
    results = [trial.result(posted, b"yes", beside=beside[first]), trial.result(posted, b"no", beside=beside[second])]
    before = trial.books(world.requester.address)
    receipt = prove(trial, posted, *results)
    trial.assert_punished(
        receipt,
        before,
        Fault.EQUIVOCATION,
        world.node,
        posted,
        EQUIVOCATION_WEI,
        world.requester.address,
        posted.params["maxReward"],
    )
    node = world.stakes.nodeOf(world.node)
    assert (node.stake, node.misses, node.faults) == (MIN_STAKE - EQUIVOCATION_WEI, 0, 1)


def test_prove_equivocation__last_of_a_set__costs_the_node(trial):
    posted = trial.world.post()
    others = [builders.item(trial.world.post()) for _ in range(3)]
    results = two_of(trial, posted, beside=others)
    for each in results:
        own, *rest = each["set"]
        each["set"] = [*rest, own]
        message = {"relayer": each["relayer"], "round": each["round"], "results": each["set"]}
        each["signature"] = builders.sign(trial.world.node_key, trial.world.market.address, "ResultSet", message)
    prove(trial, posted, *results)
    assert trial.faults.isProven(Fault.EQUIVOCATION, trial.world.node, posted.id, ZERO)


def test_prove_equivocation__other_relayers_rounds_and_rewards__costs_the_node(trial, other_relayer):
    posted = trial.world.post()
    first = trial.result(posted, b"yes")
    second = trial.result(posted, b"no", round_=7, relayer=other_relayer.address)
    prove(trial, posted, first, second)
    assert trial.faults.isProven(Fault.EQUIVOCATION, trial.world.node, posted.id, ZERO)


def test_prove_equivocation__settled_before__costs_the_node(trial):
    posted = trial.world.post()
    recorded = trial.record([trial.decision(posted)])
    trial.pay(posted, recorded.round)
    prove(trial, posted, *two_of(trial, posted))
    assert trial.faults.isProven(Fault.EQUIVOCATION, trial.world.node, posted.id, ZERO)


# NOT PROVEN


def test_prove_equivocation__one_result_signed_twice__not_proven(trial):
    posted = trial.world.post()
    results = [trial.result(posted, b"yes"), trial.result(posted, b"yes", round_=2)]
    with ape.reverts(trial.faults.NotProven, reason=reason("one result")):
        prove(trial, posted, *results)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("field", ["resultHash", "reward", "relayer", "round"])
def test_prove_equivocation__field_that_was_not_signed__not_proven(trial, which, field):
    posted = trial.world.post()
    results = two_of(trial, posted)
    other = {"resultHash": bytes(31) + b"\x09", "reward": 5, "relayer": trial.world.owner.address, "round": 9}
    results[which] |= {field: other[field]}
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, *results)


@pytest.mark.parametrize("which", [0, 1])
def test_prove_equivocation__set_without_it__not_proven(trial, which):
    posted, other = trial.world.post(), trial.world.post()
    results = two_of(trial, posted)
    elsewhere = trial.result(other, b"x", beside=[builders.item(other)])
    results[which] |= {"set": elsewhere["set"], "signature": elsewhere["signature"]}
    with ape.reverts(trial.faults.NotProven, reason=reason("not in the set")):
        prove(trial, posted, *results)


def test_prove_equivocation__set_that_was_not_signed__not_proven(trial):
    posted = trial.world.post()
    first, second = two_of(trial, posted, beside=[builders.item(trial.world.post())])
    second |= {"set": [*second["set"], bytes(32)]}
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, first, second)


def test_prove_equivocation__result_alone_passed_as_a_set__not_proven(trial):
    posted = trial.world.post()
    first, second = two_of(trial, posted)
    item = builders.item(posted, second["reward"]).with_(result_hash=second["resultHash"])
    second |= {"set": [builders.result_struct_hash(item, second["relayer"], second["round"])]}
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, first, second)


@pytest.mark.parametrize("which", [0, 1])
def test_prove_equivocation__one_signed_by_another_key__not_proven(trial, other_node, which):
    posted = trial.world.post()
    results = two_of(trial, posted)
    results[which] = trial.result(posted, b"else", key=OTHER_NODE_KEY)
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, *results)


def test_prove_equivocation__results_of_another_request__not_proven(trial):
    posted, other = trial.world.post(), trial.world.post()
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, *two_of(trial, other))


def test_prove_equivocation__stranger__not_joined(trial):
    key = "0x" + "c3" * 32
    node, posted = Account.from_key(key).address, trial.world.post()
    with ape.reverts(trial.world.stakes.NotJoined, key=node):
        prove(trial, posted, *two_of(trial, posted, key=key), node=node)


def test_prove_equivocation__again_with_other_results__already_proven(trial):
    posted = trial.world.post()
    prove(trial, posted, *two_of(trial, posted))
    with ape.reverts(trial.faults.AlreadyProven, fault=Fault.EQUIVOCATION, culprit=trial.world.node):
        prove(trial, posted, trial.result(posted, b"yes"), trial.result(posted, b"perhaps"))


# KEYS THAT WERE ROTATED AWAY


def test_prove_equivocation__retired_key_while_it_is_paid__costs_the_node(trial):
    world = trial.world
    posted = world.post()
    rotate(trial)
    world.next_block_at(world.stakes.retiredAt(world.node) + UNBOND_DELAY)
    prove(trial, posted, *two_of(trial, posted))
    assert world.stakes.nodeOf(world.node).stake == MIN_STAKE - EQUIVOCATION_WEI


def test_prove_equivocation__long_retired_key__not_proven_though_the_request_is_of_its_time(trial):
    """The key may have been rotated away because it leaked, and may sign about any request now."""
    world = trial.world
    posted = world.post()
    rotate(trial)
    world.next_block_at(world.stakes.retiredAt(world.node) + UNBOND_DELAY + 1)
    with ape.reverts(trial.faults.NotProven, reason=reason("after the key's retirement")):
        prove(trial, posted, *two_of(trial, posted))


def test_prove_equivocation__one_request_and_both_keys__is_one_fault_of_one_node(trial):
    world = trial.world
    posted = world.post()
    key = rotate(trial)
    prove(trial, posted, *two_of(trial, posted, key=OTHER_NODE_KEY), node=key)
    assert world.stakes.nodeOf(world.node).stake == MIN_STAKE - EQUIVOCATION_WEI
    assert trial.faults.isProven(Fault.EQUIVOCATION, world.node, posted.id, ZERO)
    with ape.reverts(trial.faults.AlreadyProven, culprit=world.node):
        prove(trial, posted, *two_of(trial, posted))


def test_prove_equivocation__both_keys_of_a_node_each_one_result__not_proven(trial):
    posted = trial.world.post()
    rotate(trial)
    results = [trial.result(posted, b"yes"), trial.result(posted, b"no", key=OTHER_NODE_KEY)]
    with ape.reverts(trial.faults.NotProven, reason=reason("not signed so")):
        prove(trial, posted, *results)


def test_prove_equivocation__more_than_the_stake__takes_what_is_left(trial):
    world = trial.world
    taken = []
    for _ in range(5):
        posted = world.post()
        receipt = prove(trial, posted, *two_of(trial, posted))
        (event,) = receipt.decode_logs(trial.faults.FaultProven)
        assert event.bounty + event.compensation <= event.slashed // 2
        taken.append(event.slashed)
    assert taken == [EQUIVOCATION_WEI] * 4 + [0]
    assert world.stakes.nodeOf(world.node).stake == 0
    assert sum(taken) == ETHER
