from __future__ import annotations

import ape
import pytest

from tests.contracts import builders
from tests.contracts.builders import GRACE, Status


def test_raise_priority_fee__by_anyone__adds_up_and_is_logged(world):
    posted = world.post()
    world.market.raisePriorityFee(posted.id, sender=world.requester, value=5)
    receipt = world.market.raisePriorityFee(posted.id, sender=world.stranger, value=7)
    (event,) = receipt.decode_logs(world.market.PriorityFeeRaised)
    assert (event.requestId, event.added, event.total) == (posted.id, 7, 12)
    assert tuple(world.market.pendingOf(posted.id)) == (12, posted.deadline)


def test_raise_priority_fee__at_the_deadline__is_taken(world):
    posted = world.post()
    world.next_block_at(posted.deadline)
    world.market.raisePriorityFee(posted.id, sender=world.requester, value=5)
    assert world.market.pendingOf(posted.id).priorityFeeAdded == 5


def test_raise_priority_fee__a_second_after_the_deadline__deadline_passed(world):
    posted = world.post()
    world.next_block_at(posted.deadline + 1)
    expected = {"deadline": posted.deadline, "blockTimestamp": posted.deadline + 1}
    with ape.reverts(world.market.DeadlinePassed, **expected):
        world.market.raisePriorityFee(posted.id, sender=world.requester, value=5)


def test_raise_priority_fee__after_a_cancel__deadline_passed(world):
    posted = world.post()
    world.market.cancel(posted.request, sender=world.requester)
    cancelled_at = world.now
    world.next_block_at(cancelled_at + 1)
    with ape.reverts(world.market.DeadlinePassed, deadline=cancelled_at, blockTimestamp=cancelled_at + 1):
        world.market.raisePriorityFee(posted.id, sender=world.requester, value=5)


def test_raise_priority_fee__nothing_sent__nothing_sent(world):
    posted = world.post()
    with ape.reverts(world.market.NothingSent):
        world.market.raisePriorityFee(posted.id, sender=world.requester)


def test_raise_priority_fee__unknown_request__not_pending(world):
    unknown = b"\x01" * 32
    with ape.reverts(world.market.NotPending, requestId=unknown, status=Status.NONE):
        world.market.raisePriorityFee(unknown, sender=world.requester, value=1)


def test_raise_priority_fee__fulfilled_request__not_pending(world):
    posted = world.post()
    world.settle(posted)
    with ape.reverts(world.market.NotPending, requestId=posted.id, status=Status.FULFILLED):
        world.market.raisePriorityFee(posted.id, sender=world.requester, value=1)


def test_raise_priority_fee__more_than_its_field_holds__reverts(world):
    posted = world.post()
    world.provider.set_balance(world.requester.address, 2**100)
    world.market.raisePriorityFee(posted.id, sender=world.requester, value=2**96 - 1)
    with ape.reverts():
        world.market.raisePriorityFee(posted.id, sender=world.requester, value=1)
    assert tuple(world.market.pendingOf(posted.id)) == (2**96 - 1, posted.deadline)


def test_raise_priority_fee__then_settled__is_split_like_the_fee(world):
    posted = world.post()
    world.market.raisePriorityFee(posted.id, sender=world.stranger, value=101)
    receipt = world.settle(posted)
    shares = world.shares_in(receipt, builders.item(posted), added=101)
    assert world.credit(world.node_owner) == shares.node
    assert world.credit(world.relayer) == shares.relayer
    assert world.credit(world.requester) == shares.refund


def test_raise_priority_fee__then_expired__goes_to_the_requester(world):
    posted = world.post()
    world.market.raisePriorityFee(posted.id, sender=world.stranger, value=101)
    world.next_block_at(posted.deadline + GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    assert world.credit(world.requester) == posted.escrow + 101
    assert world.credit(world.stranger) == 0


@pytest.mark.parametrize("value", [1, 10**20])
def test_raise_priority_fee__any_sum__does_not_touch_deadline_or_status(world, value):
    posted = world.post()
    world.market.raisePriorityFee(posted.id, sender=world.requester, value=value)
    assert world.status_of(posted) == Status.PENDING
    assert world.deadline_of(posted) == posted.deadline
