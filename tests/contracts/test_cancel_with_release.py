from __future__ import annotations

import ape
import pytest

from tests.contracts import builders
from tests.contracts.builders import GRACE, ZERO, ItemStatus, Status


def release(world, posted, valid_until, key=None):
    return builders.sign_release(key or world.relayer_key, world.market.address, posted.id, valid_until)


def cancel(world, posted, valid_until, signature, sender=None):
    return world.market.cancelWithRelease(posted.request, valid_until, signature, sender=sender or world.requester)


def test_cancel_with_release__released__refunds_at_once(world):
    posted = world.post()
    world.market.raisePriorityFee(posted.id, sender=world.stranger, value=3)
    valid_until = world.now + 60
    receipt = cancel(world, posted, valid_until, release(world, posted, valid_until))
    (event,) = receipt.decode_logs(world.market.RequestClosed)
    assert (event.requestId, event.requester) == (posted.id, world.requester.address)
    assert (event.status, event.refund) == (Status.CANCELLED, posted.escrow + 3)
    assert world.status_of(posted) == Status.CANCELLED
    assert world.credit(world.requester) == posted.escrow + 3


def test_cancel_with_release__after_the_deadline__refunds_at_once(world):
    posted = world.post()
    world.next_block_at(posted.deadline + 1)
    cancel(world, posted, posted.deadline + 1, release(world, posted, posted.deadline + 1))
    assert world.credit(world.requester) == posted.escrow


def test_cancel_with_release__twice__not_pending(world):
    posted = world.post()
    valid_until = world.now + 60
    signature = release(world, posted, valid_until)
    cancel(world, posted, valid_until, signature)
    with ape.reverts(world.market.NotPending, requestId=posted.id, status=Status.CANCELLED):
        cancel(world, posted, valid_until, signature)


def test_cancel_with_release__last_second__is_taken(world):
    posted = world.post()
    valid_until = world.now + 60
    world.next_block_at(valid_until)
    cancel(world, posted, valid_until, release(world, posted, valid_until))
    assert world.status_of(posted) == Status.CANCELLED


def test_cancel_with_release__a_second_late__release_expired(world):
    posted = world.post()
    valid_until = world.now + 60
    world.next_block_at(valid_until + 1)
    expected = {"validUntil": valid_until, "blockTimestamp": valid_until + 1}
    with ape.reverts(world.market.SignatureExpired, **expected):
        cancel(world, posted, valid_until, release(world, posted, valid_until))


def test_cancel_with_release__another_time_than_signed__invalid_signature(world):
    posted = world.post()
    signature = release(world, posted, world.now + 60)
    with ape.reverts(world.market.InvalidSignature):
        cancel(world, posted, world.now + 61, signature)


def test_cancel_with_release__signed_for_another_request__invalid_signature(world):
    posted, other = world.post(), world.post()
    valid_until = world.now + 60
    with ape.reverts(world.market.InvalidSignature):
        cancel(world, posted, valid_until, release(world, other, valid_until))


def test_cancel_with_release__signed_for_another_market__invalid_signature(world, deploy_market):
    posted = world.post()
    valid_until = world.now + 60
    elsewhere = deploy_market().address
    signature = builders.sign_release(world.relayer_key, elsewhere, posted.id, valid_until)
    with ape.reverts(world.market.InvalidSignature):
        cancel(world, posted, valid_until, signature)


def test_cancel_with_release__signed_by_another__invalid_signature_names_it(world):
    posted = world.post()
    valid_until = world.now + 60
    signature = release(world, posted, valid_until, world.requester.private_key)
    with ape.reverts(world.market.InvalidSignature, signer=world.requester.address):
        cancel(world, posted, valid_until, signature)


@pytest.mark.parametrize("signature", [b"", b"\x01" * 64, b"\x01" * 65, b"\x01" * 66])
def test_cancel_with_release__no_signature_at_all__invalid_signature(world, signature):
    posted = world.post()
    with ape.reverts(world.market.InvalidSignature):
        cancel(world, posted, world.now + 60, signature)


def test_cancel_with_release__open_race__invalid_signature(world):
    posted = world.post(relayer=ZERO)
    valid_until = world.now + 60
    with ape.reverts(world.market.InvalidSignature):
        cancel(world, posted, valid_until, release(world, posted, valid_until))


def test_cancel_with_release__open_race_and_unreadable_signature__invalid_signature(world):
    posted = world.post(relayer=ZERO)
    with ape.reverts(world.market.InvalidSignature, signer=ZERO):
        cancel(world, posted, world.now + 60, b"")


def test_cancel_with_release__by_another__not_requester(world):
    posted = world.post()
    valid_until = world.now + 60
    expected = {"caller": world.stranger.address, "requester": world.requester.address}
    with ape.reverts(world.market.NotRequester, **expected):
        cancel(world, posted, valid_until, release(world, posted, valid_until), sender=world.stranger)


def test_cancel_with_release__result_comes_after__is_not_paid(world):
    posted = world.post()
    round_ = world.record_round()
    valid_until = world.now + 60
    cancel(world, posted, valid_until, release(world, posted, valid_until))
    receipt = world.submit(world.set_of([builders.item(posted)], round_))
    assert world.statuses(receipt) == [[ItemStatus.ALREADY_DONE]]


def test_cancel_with_release__then_expire__refunds_no_second_time(world):
    posted = world.post()
    valid_until = world.now + 60
    cancel(world, posted, valid_until, release(world, posted, valid_until))
    world.next_block_at(posted.deadline + GRACE + 1)
    world.market.expire([posted.request], sender=world.requester)
    assert world.credit(world.requester) == posted.escrow
