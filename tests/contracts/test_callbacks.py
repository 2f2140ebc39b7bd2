"""Callbacks: what `submitResults` does for requests that name callback gas."""

from __future__ import annotations

from enum import IntEnum

import ape
import pytest
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import ETHER, ItemStatus, Mode, Status, item
from tests.contracts.conftest import OTHER_NODE_KEY
from tests.contracts.test_submit_assigned import Way
from tests.contracts.world import GAS_LIMIT

CALLBACK_GAS = 200_000
Behaviour = IntEnum("Behaviour", "NOTES REVERTS BURNS_ALL_GAS RETURNS_MUCH REVERTS_WITH_MUCH CALLS_BACK", start=0)


@pytest.fixture
def receiver(project, world):
    receiver = world.stranger.deploy(project.Receiver, world.market)
    world.holders.add(receiver.address)
    return receiver


def ask(world, receiver, **fields):
    fields = {"callbackGas": CALLBACK_GAS, "gasBudget": 10**16} | fields
    posted = world.prepare(receiver, **fields)
    receiver.ask(posted.params, b"", sender=world.requester, value=posted.escrow)
    return world.track(posted)


def settle(world, *posted, inline=False, **kwargs):
    items = [item(p, inline=inline) for p in posted]
    return world.submit(world.set_of(items, world.record_round()), **kwargs)


def test_callback__answer__is_told_after_all_is_credited(world, receiver):
    posted = ask(world, receiver)
    receipt = settle(world, posted)
    assert receiver.calls() == 1
    assert (receiver.lastId(), receiver.lastHash()) == (posted.id, item(posted).result_hash)
    assert receiver.lastResult() == b""
    assert world.status_of(posted) == Status.FULFILLED
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert event.nodePaid + event.relayerPaid + event.refund == posted.escrow
    # What came back but for the rest of the gas budget was there when the contract was called.
    before = posted.escrow - event.nodePaid - event.relayerPaid - receiver.creditSeen()
    assert 0 < before < posted.params["gasBudget"]
    assert world.credit(receiver) == event.refund
    assert world.credit(world.relayer) == event.relayerPaid
    assert world.credit(world.node_owner) == event.nodePaid


def test_callback__inline__has_the_bytes(world, receiver):
    posted = ask(world, receiver, inlineResult=True)
    settle(world, posted, inline=True)
    assert receiver.lastResult() == b"an answer to " + posted.id


def test_callback__inline_without_the_bytes__bad_result(world, receiver):
    posted = ask(world, receiver, inlineResult=True)
    assert world.statuses(settle(world, posted)) == [[ItemStatus.BAD_RESULT]]
    assert receiver.calls() == 0
    assert world.status_of(posted) == Status.PENDING


def test_callback__gas__is_what_the_request_names(world, receiver):
    posted = ask(world, receiver)
    settle(world, posted)
    assert CALLBACK_GAS - 2_000 < receiver.lastGas() <= CALLBACK_GAS


def test_callback__account_without_code__is_called_in_vain(world):
    posted = world.post(callbackGas=CALLBACK_GAS)
    world.settle(posted)
    assert world.status_of(posted) == Status.FULFILLED


def test_callback__its_gas__is_paid_to_the_relayer_from_the_budget(world, receiver):
    plain, called = world.post(gasBudget=10**16), ask(world, receiver)
    receipt = settle(world, plain, called)
    by_id = {event.requestId: event for event in receipt.decode_logs(world.market.ResultFulfilled)}
    # A tenth of what is saved is the relayer's, so nine tenths of the callback's cost come on top.
    price = world.gas_price_paid_for(receipt)
    more = by_id[called.id].relayerPaid - by_id[plain.id].relayerPaid
    gas = more / 0.9 / price
    assert 100_000 < gas < CALLBACK_GAS + 30_000
    assert by_id[plain.id].refund - by_id[called.id].refund == more


def test_callback__costs_more_than_the_budget__is_paid_the_budget(world, receiver):
    posted = ask(world, receiver, gasBudget=10**12)
    receipt = settle(world, posted)
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    fee = posted.params["priorityFee"]
    assert event.relayerPaid == 10**12 + fee * 20 // 100
    assert receiver.calls() == 1


def test_callback__plain_items_between__each_is_told_of_its_own(world, receiver, project):
    other = world.stranger.deploy(project.Receiver, world.market)
    world.holders.add(other.address)
    posted = [world.post(), ask(world, receiver), world.post(), ask(world, other), ask(world, receiver)]
    receipt = settle(world, *posted)
    assert world.statuses(receipt) == [[ItemStatus.OK] * 5]
    assert (receiver.calls(), other.calls()) == (2, 1)
    assert other.lastId() == posted[3].id
    assert receiver.lastId() == posted[4].id
    for event in receipt.decode_logs(world.market.ResultFulfilled):
        escrow = next(p.escrow for p in posted if p.id == event.requestId)
        assert event.nodePaid + event.relayerPaid + event.refund == escrow


def test_callback__bad_item__is_not_told(world, receiver):
    good, bad = ask(world, receiver), ask(world, receiver)
    too_much = item(bad).with_(reward=bad.params["maxReward"] + 1)
    receipt = world.submit(world.set_of([item(good), too_much], world.record_round()))
    assert world.statuses(receipt) == [[ItemStatus.OK, ItemStatus.REWARD_TOO_HIGH]]
    assert receiver.calls() == 1


# FAILURE


@pytest.mark.parametrize("behaviour", [Behaviour.REVERTS, Behaviour.BURNS_ALL_GAS, Behaviour.REVERTS_WITH_MUCH])
def test_callback__fails__result_is_paid_and_final_all_the_same(world, receiver, behaviour):
    receiver.set(behaviour, b"", sender=world.stranger)
    posted, plain = ask(world, receiver), world.post()
    receipt = settle(world, posted, plain)
    assert world.statuses(receipt) == [[ItemStatus.OK] * 2]
    assert world.status_of(posted) == Status.FULFILLED_CALLBACK_FAILED
    assert world.status_of(plain) == Status.FULFILLED
    (failed,) = receipt.decode_logs(world.market.CallbackFailed)
    reason = keccak(text="Refused(uint256)")[:4] if behaviour == Behaviour.REVERTS else bytes(4)
    assert (failed.requestId, failed.reason) == (posted.id, reason)
    ref = ref_of(world, posted)
    assert world.market.verifyResult(posted.id, ref, b"")
    # It can be neither paid again nor refunded.
    assert world.statuses(settle(world, posted)) == [[ItemStatus.ALREADY_DONE]]
    world.next_block_at(posted.deadline + builders.GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    assert world.status_of(posted) == Status.FULFILLED_CALLBACK_FAILED


def ref_of(world, posted, **changes):
    values = {
        "resultHash": item(posted).result_hash,
        "relayer": world.relayer.address,
        "round": world.log.nextRound(world.relayer) - 1,
        "nodes": [world.node],
        "settledAt": world.now,
    }
    return values | changes


@pytest.mark.parametrize("behaviour", [Behaviour.RETURNS_MUCH, Behaviour.REVERTS_WITH_MUCH])
def test_callback__return_bomb__costs_its_own_gas_only(world, receiver, behaviour):
    """200 kB of answer would cost the caller 95k gas to copy; four bytes are copied."""
    receiver.set(behaviour, b"", sender=world.stranger)
    quiet, loud = ask(world, receiver, callbackGas=1), ask(world, receiver)
    without = settle(world, quiet).gas_used
    assert settle(world, loud).gas_used - without < CALLBACK_GAS + 10_000


@pytest.mark.parametrize("limit", range(150_000, 420_000, 15_000))
def test_callback__submitter_gives_too_little_gas__all_reverts_or_the_call_has_its_gas(world, receiver, limit):
    """EIP-150: else a submitter could make a callback fail and be paid."""
    posted = ask(world, receiver)
    result_set = world.set_of([item(posted)], world.record_round())
    try:
        world.submit(result_set, gas_limit=limit)
    except ape.exceptions.ContractLogicError:
        assert world.status_of(posted) == Status.PENDING
    else:
        assert world.status_of(posted) == Status.FULFILLED
        assert receiver.lastGas() > CALLBACK_GAS - 2_000


def test_callback__just_too_little_gas__insufficient_gas(world, receiver):
    posted = ask(world, receiver, callbackGas=1_000_000)
    result_set = world.set_of([item(posted)], world.record_round())
    with ape.reverts(world.market.InsufficientGas):
        world.submit(result_set, gas_limit=900_000)


# RE-ENTRY


def reentries(world, receiver):
    """Calls that a callback might try, and whether they may work."""
    other = ask(world, receiver)
    again = world.set_of([item(other)], world.record_round())
    asked = world.track(world.prepare(receiver, callbackGas=0))
    encode = world.market
    yield "submitResults", bytes(world.encode_submit(again.build())), False
    yield "requestInference", bytes(encode.requestInference.encode_input(asked.params, b"")), True
    yield "withdrawTo", bytes(encode.withdrawTo.encode_input(receiver, 1)), True
    yield "cancel", bytes(encode.cancel.encode_input(other.request)), True


@pytest.mark.parametrize("which", ["submitResults", "requestInference", "withdrawTo", "cancel"])
def test_callback__calls_the_market__may_ask_and_withdraw_but_not_submit(world, receiver, which):
    calls = {name: (data, may) for name, data, may in reentries(world, receiver)}
    data, may = calls[which]
    receiver.set(Behaviour.CALLS_BACK, data, sender=world.stranger)
    world.market.deposit(receiver, sender=world.stranger, value=ETHER)
    posted = ask(world, receiver, callbackGas=600_000)
    settle(world, posted)
    assert world.status_of(posted) == Status.FULFILLED
    assert receiver.reentryWorked() == may


def test_callback__submits_as_its_own_relayer__is_locked_out(world, receiver, project, stakes):
    """A receiver that is a relayer itself: the lock, not the sender's check, refuses it."""
    data = bytes(world.market.submitResults.encode_input(receiver, []))
    receiver.set(Behaviour.CALLS_BACK, data, sender=world.stranger)
    settle(world, ask(world, receiver))
    assert not receiver.reentryWorked()
    assert receiver.reentryAnswer() == keccak(text="ReentrancyGuardReentrantCall()")[:4]


# MODES


def test_callback__quorum__is_told_once(world, receiver, other_node):
    posted = ask(world, receiver, mode=Mode.QUORUM, k=2, n=2)
    answer = item(posted, reward=posted.params["maxReward"] // 2)
    result_set = world.set_of([answer], world.record_round(), keys=[world.node_key, OTHER_NODE_KEY])
    assert world.statuses(world.submit(result_set)) == [[ItemStatus.OK]]
    assert receiver.calls() == 1


def test_callback__self_settled__node_is_paid_for_the_call(world, receiver):
    posted = ask(world, receiver)
    way = Way(world, posted).to_window()
    receipt = way.submit()
    assert receiver.calls() == 1
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert event.nodePaid + event.relayerPaid + event.refund == posted.escrow
    assert world.credit(world.node_owner) == event.nodePaid + event.relayerPaid
    assert world.credit(receiver) == event.refund


def test_callback__most_gas_in_a_batch_near_the_cap__each_has_its_gas(world, receiver):
    """EIP-7825 leaves room for six of the largest callbacks."""
    receiver.set(Behaviour.BURNS_ALL_GAS, b"", sender=world.stranger)
    many = [ask(world, receiver, callbackGas=builders.MAX_CALLBACK_GAS) for _ in range(6)]
    receipt = settle(world, *many, gas_limit=GAS_LIMIT)
    assert receipt.gas_used < 2**24
    assert all(world.status_of(p) == Status.FULFILLED_CALLBACK_FAILED for p in many)
