from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts.builders import Status, item
from tests.contracts.test_callbacks import CALLBACK_GAS, Behaviour, ask, receiver, ref_of, settle  # noqa: F401
from tests.contracts.world import _as_tuple


@pytest.fixture
def failed(world, receiver):  # noqa: F811
    """A request whose callback failed, and its reference."""
    receiver.set(Behaviour.REVERTS, b"", sender=world.stranger)
    posted = ask(world, receiver)
    settle(world, posted)
    return posted, ref_of(world, posted)


def retry(world, posted, ref, result=b"", **kwargs):
    return world.market.retryCallback(
        _as_tuple(posted.request), _as_tuple(ref), result, **({"sender": world.stranger} | kwargs)
    )


def test_retry_callback__receiver_mended__is_told(world, receiver, failed):  # noqa: F811
    posted, ref = failed
    receiver.set(Behaviour.NOTES, b"", sender=world.stranger)
    credits_before = [world.credit(a) for a in (receiver, world.relayer, world.node_owner, world.stranger)]
    receipt = retry(world, posted, ref)
    assert (receiver.calls(), receiver.lastId()) == (1, posted.id)
    assert world.status_of(posted) == Status.FULFILLED
    assert receipt.decode_logs(world.market.CallbackRetried)[0].requestId == posted.id
    assert world.market.verifyResult(posted.id, ref, b"")
    # It moves no money: whoever retries pays for the gas.
    assert [world.credit(a) for a in (receiver, world.relayer, world.node_owner, world.stranger)] == credits_before


def test_retry_callback__fails_again__can_be_retried_still(world, receiver, failed):  # noqa: F811
    posted, ref = failed
    reason = keccak(text="Refused(uint256)")[:4]
    with ape.reverts(world.market.CallbackFailedAgain, requestId=posted.id, reason=reason):
        retry(world, posted, ref)
    assert world.status_of(posted) == Status.FULFILLED_CALLBACK_FAILED
    receiver.set(Behaviour.NOTES, b"", sender=world.stranger)
    retry(world, posted, ref)
    assert receiver.calls() == 1


def test_retry_callback__twice__no_failed_callback(world, receiver, failed):  # noqa: F811
    posted, ref = failed
    receiver.set(Behaviour.NOTES, b"", sender=world.stranger)
    retry(world, posted, ref)
    with ape.reverts(world.market.NoFailedCallback, requestId=posted.id):
        retry(world, posted, ref)
    assert receiver.calls() == 1


def test_retry_callback__callback_that_worked__no_failed_callback(world, receiver):  # noqa: F811
    posted = ask(world, receiver)
    settle(world, posted)
    with ape.reverts(world.market.NoFailedCallback, requestId=posted.id):
        retry(world, posted, ref_of(world, posted))


@pytest.mark.parametrize("field", ["resultHash", "round", "settledAt", "relayer", "nodes"])
def test_retry_callback__another_reference__no_failed_callback(world, receiver, failed, field):  # noqa: F811
    posted, ref = failed
    receiver.set(Behaviour.NOTES, b"", sender=world.stranger)
    other = {"resultHash": bytes(32), "relayer": world.stranger.address, "nodes": [world.stranger.address]}
    with ape.reverts(world.market.NoFailedCallback, requestId=posted.id):
        retry(world, posted, ref | {field: other.get(field, 0)})


def test_retry_callback__pending_request__no_failed_callback(world, receiver):  # noqa: F811
    posted = ask(world, receiver)
    with ape.reverts(world.market.NoFailedCallback, requestId=posted.id):
        retry(world, posted, ref_of(world, posted))


def test_retry_callback__bytes_that_nobody_asked_for__result_mismatch(world, receiver, failed):  # noqa: F811
    posted, ref = failed
    with ape.reverts(world.market.ResultMismatch, resultHash=item(posted).result_hash):
        retry(world, posted, ref, b"an answer to " + posted.id)


def test_retry_callback__inline__wants_the_very_bytes(world, receiver):  # noqa: F811
    """Else anybody could use up the call without them."""
    receiver.set(Behaviour.REVERTS, b"", sender=world.stranger)
    posted = ask(world, receiver, inlineResult=True)
    settle(world, posted, inline=True)
    ref = ref_of(world, posted)
    receiver.set(Behaviour.NOTES, b"", sender=world.stranger)
    for wrong in (b"", b"another answer"):
        with ape.reverts(world.market.ResultMismatch, resultHash=item(posted).result_hash):
            retry(world, posted, ref, wrong)
    retry(world, posted, ref, b"an answer to " + posted.id)
    assert receiver.lastResult() == b"an answer to " + posted.id


def test_retry_callback__too_little_gas__insufficient_gas(world, receiver, failed):  # noqa: F811
    posted, ref = failed
    receiver.set(Behaviour.NOTES, b"", sender=world.stranger)
    with ape.reverts(world.market.InsufficientGas):
        retry(world, posted, ref, gas_limit=CALLBACK_GAS + 30_000)
    assert receiver.calls() == 0


def test_retry_callback__more_gas_than_the_request_named__is_passed_on(world, receiver):  # noqa: F811
    """A callback that failed for want of gas can be helped."""
    posted = ask(world, receiver, callbackGas=5_000)
    settle(world, posted)
    assert world.status_of(posted) == Status.FULFILLED_CALLBACK_FAILED
    retry(world, posted, ref_of(world, posted))
    assert world.status_of(posted) == Status.FULFILLED
    assert receiver.calls() == 1


def test_retry_callback__from_within_a_callback__is_locked_out(world, receiver, failed):  # noqa: F811
    posted, ref = failed
    data = bytes(world.market.retryCallback.encode_input(_as_tuple(posted.request), _as_tuple(ref), b""))
    receiver.set(Behaviour.CALLS_BACK, data, sender=world.stranger)
    settle(world, ask(world, receiver))
    assert not receiver.reentryWorked()
    assert receiver.reentryAnswer() == keccak(text="ReentrancyGuardReentrantCall()")[:4]
    assert world.status_of(posted) == Status.FULFILLED_CALLBACK_FAILED
