"""InferenceConsumer: a contract that asks the market and is told the answers."""

from __future__ import annotations

from contextlib import contextmanager
from enum import IntEnum

import ape
import pytest
from eth_utils import keccak

from tests.contracts.builders import ETHER, Status, item
from tests.contracts.world import _as_tuple

Behaviour = IntEnum("Behaviour", "NOTES REVERTS ASKS_AGAIN", start=0)
CALLBACK_GAS = 600_000
ERC165, NOTHING = bytes.fromhex("01ffc9a7"), bytes.fromhex("ffffffff")


@pytest.fixture
def consumer(project, world):
    consumer = world.stranger.deploy(project.ProbeConsumer, world.market)
    world.holders.add(consumer.address)
    return consumer


def ask(world, consumer, **fields):
    fields = {"callbackGas": CALLBACK_GAS, "gasBudget": 10**16} | fields
    posted = world.prepare(consumer, **fields)
    consumer.ask(posted.params, b"", sender=world.requester, value=posted.escrow)
    return world.track(posted)


def settle(world, *posted, inline=False):
    return world.submit(world.set_of([item(p, inline=inline) for p in posted], world.record_round()))


def ref_of(world, posted, receipt) -> dict:
    return {
        "resultHash": item(posted).result_hash,
        "relayer": world.relayer.address,
        "round": receipt.decode_logs(world.market.BatchSettled)[0].round,
        "nodes": [world.node],
        "settledAt": receipt.timestamp,
    }


def retry(world, posted, receipt):
    ref = ref_of(world, posted, receipt)
    return world.market.retryCallback(_as_tuple(posted.request), _as_tuple(ref), b"", sender=world.stranger)


def test_on_inference_result__by_the_market__is_told_once_what_was_settled(world, consumer):
    posted = ask(world, consumer)
    assert consumer.isOpen(posted.id)
    settle(world, posted)
    assert (consumer.answers(), consumer.lastId(), consumer.lastHash()) == (1, posted.id, item(posted).result_hash)
    assert consumer.lastResult() == b""
    assert not consumer.isOpen(posted.id)
    assert world.status_of(posted) == Status.FULFILLED


def test_on_inference_result__inline__has_the_bytes(world, consumer):
    posted = ask(world, consumer, inlineResult=True)
    settle(world, posted, inline=True)
    assert consumer.lastResult() == b"an answer to " + posted.id


def test_on_inference_result__by_anybody_else__reverts(world, consumer):
    posted = ask(world, consumer)
    for caller in (world.requester, world.relayer, world.owner):
        with ape.reverts(consumer.NotTheMarket, caller=caller.address):
            consumer.onInferenceResult(posted.id, keccak(b"x"), b"x", sender=caller)
    assert consumer.isOpen(posted.id)


@contextmanager
def market_itself(world, accounts):
    """The market's own account, with wei for gas while the block lasts."""
    balance = world.market.balance
    world.provider.make_request("anvil_setBalance", [world.market.address, hex(balance + ETHER)])
    yield accounts.impersonate_account(world.market.address)
    world.provider.make_request("anvil_setBalance", [world.market.address, hex(balance)])


def test_on_inference_result__of_a_request_that_it_did_not_ask__reverts(world, consumer, accounts):
    with market_itself(world, accounts) as market, ape.reverts(consumer.NotAsked, requestId=keccak(b"unknown")):
        consumer.onInferenceResult(keccak(b"unknown"), keccak(b"x"), b"x", sender=market)


def test_on_inference_result__of_a_request_that_was_answered__reverts(world, consumer, accounts):
    posted = ask(world, consumer)
    with market_itself(world, accounts) as market:
        consumer.onInferenceResult(posted.id, keccak(b"x"), b"x", sender=market)
        with ape.reverts(consumer.NotAsked, requestId=posted.id):
            consumer.onInferenceResult(posted.id, keccak(b"y"), b"y", sender=market)
    assert (consumer.answers(), consumer.lastResult()) == (1, b"x")


def test_on_inference_result__each_request__is_answered_to_itself(world, consumer):
    first, second = ask(world, consumer), ask(world, consumer)
    settle(world, second)
    assert (consumer.isOpen(first.id), consumer.isOpen(second.id)) == (True, False)
    settle(world, first)
    assert (consumer.answers(), consumer.lastId()) == (2, first.id)


def test_on_answer__reverts__stays_open_and_is_told_on_a_retry(world, consumer):
    consumer.set(Behaviour.REVERTS, sender=world.stranger)
    posted = ask(world, consumer)
    receipt = settle(world, posted)
    assert world.status_of(posted) == Status.FULFILLED_CALLBACK_FAILED
    (event,) = receipt.decode_logs(world.market.CallbackFailed)
    assert event.reason == keccak(text="NotNow()")[:4]
    assert consumer.isOpen(posted.id)
    with ape.reverts(world.market.CallbackFailedAgain):
        retry(world, posted, receipt)
    consumer.set(Behaviour.NOTES, sender=world.stranger)
    retry(world, posted, receipt)
    assert (consumer.answers(), consumer.isOpen(posted.id)) == (1, False)
    assert world.status_of(posted) == Status.FULFILLED
    with ape.reverts(world.market.NoFailedCallback):
        retry(world, posted, receipt)
    assert consumer.answers() == 1


def test_on_answer__asks_the_next_question__is_answered_in_its_turn(world, consumer):
    following = world.prepare(consumer, callbackGas=CALLBACK_GAS, gasBudget=10**16)
    consumer.setNext(tuple(following.params.values()), sender=world.stranger)
    world.stranger.transfer(consumer, following.escrow)
    first = ask(world, consumer)
    settle(world, first)
    assert world.status_of(first) == Status.FULFILLED
    assert consumer.askedAgain() == following.id
    world.track(following)
    assert world.status_of(following) == Status.PENDING
    assert consumer.isOpen(following.id)
    settle(world, following)
    assert (consumer.answers(), consumer.lastId()) == (2, following.id)
    assert world.status_of(following) == Status.FULFILLED


def test_on_answer__cannot_pay_for_the_next_question__fails_and_asks_nothing(world, consumer):
    following = world.prepare(consumer, callbackGas=CALLBACK_GAS, gasBudget=10**16)
    consumer.setNext(tuple(following.params.values()), sender=world.stranger)
    first = ask(world, consumer)
    settle(world, first)
    assert world.status_of(first) == Status.FULFILLED_CALLBACK_FAILED
    assert world.status_of(following) == Status.NONE
    assert consumer.isOpen(first.id)


def test_collect__credit__is_paid_out_to_the_contract(world, consumer):
    posted = ask(world, consumer)
    settle(world, posted)
    credit = world.credit(consumer)
    assert credit > 0
    consumer.collect(sender=world.stranger)
    assert (world.credit(consumer), consumer.balance) == (0, credit)
    consumer.collect(sender=world.stranger)
    assert consumer.balance == credit


def test_supports_interface__receiver_and_erc165(consumer):
    receiver = keccak(text="onInferenceResult(bytes32,bytes32,bytes)")[:4]
    assert consumer.supportsInterface(receiver)
    assert consumer.supportsInterface(ERC165)
    assert not consumer.supportsInterface(NOTHING)
