"""Quorums: what `submitResults` does for sets of several nodes."""

from __future__ import annotations

import copy

import ape
import pytest
from eth_account import Account
from eth_utils import to_canonical_address

from tests.contracts import builders
from tests.contracts.builders import ItemStatus, Mode, Status, item
from tests.contracts.conftest import OTHER_NODE_KEY
from tests.contracts.world import GasTerms

THIRD_NODE_KEY = "0x" + "c3" * 32
OK = ItemStatus.OK


@pytest.fixture
def keys(world, other_node, register_node, accounts, node_owner):
    """Keys of three joined nodes of three owners, in the order of their addresses."""
    register_node(THIRD_NODE_KEY, world.market, owner=accounts[7])
    world.stakes.setPayee(other_node, world.market, accounts[6], sender=node_owner)
    world.holders |= {accounts[6].address, accounts[7].address}
    keys = [world.node_key, OTHER_NODE_KEY, THIRD_NODE_KEY]
    return sorted(keys, key=lambda key: to_canonical_address(Account.from_key(key).address))


def payee_of(world, key) -> str:
    return world.stakes.membershipOf(Account.from_key(key).address, world.market).payee


def quorum(world, k=2, n=3, **fields):
    return world.post(mode=Mode.QUORUM, k=k, n=n, **fields)


def answer(posted, k=2, reward=None):
    return item(posted, reward=posted.params["maxReward"] // (k + 1) if reward is None else reward)


def submit(world, items, keys, **fields):
    return world.submit(world.set_of(items, world.record_round(), keys=keys, **fields))


@pytest.mark.parametrize("k", [2, 3])
def test_quorum__all_k_signed__share_alike_and_the_dust_is_the_requesters(world, keys, k):
    posted = quorum(world, k, priorityFee=10**14 + 1)
    result = answer(posted, k)
    receipt = submit(world, [result], keys[:k])
    assert world.statuses(receipt) == [[OK]]
    fee = posted.params["priorityFee"]
    relayer_fee = fee * 20 // 100
    each = result.reward + (fee - relayer_fee) // k
    assert [world.credit(payee_of(world, key)) for key in keys[:k]] == [each] * k
    assert [world.settled_count(payee_of(world, key)) for key in keys[:k]] == [1] * k
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    gas = min(posted.params["gasBudget"], world.gas_terms.per_item(1, nodes=k) * world.gas_price_paid_for(receipt))
    relayer = gas + (posted.params["gasBudget"] - gas) * 10 // 100 + relayer_fee
    assert (event.nodePaid, event.relayerPaid) == (each * k, relayer)
    assert event.refund == posted.escrow - each * k - relayer
    (settled,) = receipt.decode_logs(world.market.BatchSettled)
    assert settled.nodes == [Account.from_key(key).address for key in keys[:k]]


@pytest.mark.parametrize("single", [False, True], ids=["set signatures", "a signature each"])
def test_quorum__batch__is_paid_whole(world, keys, single):
    posted = [quorum(world) for _ in range(4)]
    receipt = submit(world, [answer(p) for p in posted], keys[:2], single=single)
    assert world.statuses(receipt) == [[OK] * 4]
    assert all(world.status_of(p) == Status.FULFILLED for p in posted)


def test_quorum__settled__its_reference_names_all_nodes(world, keys):
    posted = quorum(world)
    submit(world, [answer(posted)], keys[:2])
    nodes = [Account.from_key(key).address for key in keys[:2]]
    ref = {
        "resultHash": answer(posted).result_hash,
        "relayer": world.relayer.address,
        "round": 1,
        "nodes": nodes,
        "settledAt": world.now,
    }
    assert world.market.verifyResult(posted.id, ref, b"")
    assert not world.market.verifyResult(posted.id, ref | {"nodes": nodes[:1]}, b"")


def test_quorum__further_nodes__are_paid_for_in_gas(world, keys):
    posted = [quorum(world, gasBudget=10**17) for _ in range(2)]
    receipt = submit(world, [answer(p) for p in posted], keys[:2])
    price = world.gas_price_paid_for(receipt)
    for event in receipt.decode_logs(world.market.ResultFulfilled):
        gas = world.gas_terms.per_item(2, nodes=2) * price
        fee = next(p for p in posted if p.id == event.requestId).params["priorityFee"]
        assert event.relayerPaid == gas + (10**17 - gas) // 10 + fee * 20 // 100


def test_quorum__owner_of_all_nodes__is_credited_for_each(world, other_node):
    posted = quorum(world)
    submit(world, [answer(posted)], [world.node_key, OTHER_NODE_KEY])
    fee = posted.params["priorityFee"]
    each = answer(posted).reward + (fee - fee * 20 // 100) // 2
    assert world.credit(world.node_owner) == 2 * each
    assert world.settled_count(world.node_owner) == 2


# WHAT IS NOT PAID


@pytest.mark.parametrize("k", [1, 3])
def test_quorum__fewer_or_more_nodes_than_k__bad_signature(world, keys, k):
    assert world.statuses(submit(world, [answer(quorum(world))], keys[:k])) == [[ItemStatus.BAD_SIGNATURE]]


def test_quorum__plain_request_in_a_quorums_set__bad_signature(world, keys):
    items = [answer(quorum(world)), item(world.post(), reward=1)]
    assert world.statuses(submit(world, items, keys[:2])) == [[OK, ItemStatus.BAD_SIGNATURE]]


@pytest.mark.parametrize("single", [False, True], ids=["set signatures", "a signature each"])
@pytest.mark.parametrize("forged", [0, 1])
def test_quorum__one_of_two_did_not_sign__bad_signature(world, keys, single, forged):
    posted = [quorum(world), quorum(world)]
    built = world.set_of([answer(p) for p in posted], world.record_round(), keys=keys[:2], single=single).build()
    by_another = world.set_of([answer(p) for p in posted], 1, key=keys[2], single=single).build()["signatures"]
    built["signatures"][forged] = by_another[0]
    expected = [ItemStatus.BAD_SIGNATURE, OK if single else ItemStatus.BAD_SIGNATURE]
    assert world.statuses(world.submit(built)) == [expected]


def test_quorum__signatures_in_the_other_order__bad_signature(world, keys):
    built = world.set_of([answer(quorum(world))], world.record_round(), keys=keys[:2]).build()
    built["signatures"].reverse()
    assert world.statuses(world.submit(built)) == [[ItemStatus.BAD_SIGNATURE]]


def test_quorum__rewards_together_above_the_maximum__reward_too_high(world, keys):
    posted = quorum(world, maxReward=1_001)
    most, more = answer(posted, reward=500), answer(posted, reward=501)
    assert world.statuses(submit(world, [more], keys[:2])) == [[ItemStatus.REWARD_TOO_HIGH]]
    assert world.statuses(submit(world, [most], keys[:2])) == [[OK]]


def test_quorum__largest_reward_of_the_largest_quorum__does_not_wrap(world, keys):
    """96 bits times k must not come out small."""
    posted = quorum(world, k=3)
    assert world.statuses(submit(world, [answer(posted, reward=2**96 - 1)], keys)) == [[ItemStatus.REWARD_TOO_HIGH]]


def test_quorum__one_node_not_joined__node_not_joined(world, keys, register_node):
    outside = "0x" + "d4" * 32
    register_node(outside)
    result = world.statuses(submit(world, [answer(quorum(world))], [keys[0], outside]))
    assert result == [[ItemStatus.NODE_NOT_JOINED]]


def test_quorum__one_node_on_probation__caps_the_reward_of_all(world, deploy_market, register_node, other_node, stakes):
    """The set pays one reward a node, so the newest node's cap is everybody's."""
    market = deploy_market(GasTerms(), (5, 1, 0))
    for key in (world.node_key, OTHER_NODE_KEY):
        stakes.joinMarket(Account.from_key(key).address, market, sender=world.node_owner)
    strict = copy.copy(world)
    strict.market, strict.posted = market, []
    posted = quorum(strict)
    statuses = strict.statuses(submit(strict, [answer(posted, reward=6)], [world.node_key, OTHER_NODE_KEY]))
    assert statuses == [[ItemStatus.PROBATION]]
    assert strict.statuses(submit(strict, [answer(posted, reward=5)], [world.node_key, OTHER_NODE_KEY])) == [[OK]]


# MALFORMED


@pytest.mark.parametrize("nodes", ["twice", "descending", "none", "too many"])
def test_quorum__nodes_not_in_strictly_rising_order__malformed_set(world, keys, nodes):
    built = world.set_of([answer(quorum(world))], world.record_round(), keys=keys[:2]).build()
    if nodes == "twice":
        built["nodes"] = [built["nodes"][0]] * 2
        built["signatures"] = [built["signatures"][0]] * 2
    elif nodes == "descending":
        built["nodes"].reverse()
        built["signatures"].reverse()
    elif nodes == "none":
        built["nodes"], built["signatures"] = [], []
    else:
        built["nodes"] = [f"0x{i:040x}" for i in range(1, builders.MAX_QUORUM + 2)]
        built["signatures"] = [b""] * (builders.MAX_QUORUM + 1)
    with ape.reverts(world.market.MalformedSet, setIndex=0):
        world.submit(built)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_quorum__signatures_that_fit_neither_way__malformed_set(world, keys, count):
    built = world.set_of([answer(quorum(world)), answer(quorum(world))], world.record_round(), keys=keys[:2]).build()
    built["signatures"] = (built["signatures"] * 3)[:count]
    with ape.reverts(world.market.MalformedSet, setIndex=0):
        world.submit(built)
