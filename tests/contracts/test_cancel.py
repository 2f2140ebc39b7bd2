from __future__ import annotations

import ape

from tests.contracts import builders
from tests.contracts.builders import GRACE, ItemStatus, Status


def test_cancel__before_the_deadline__moves_the_deadline_to_now(world):
    posted = world.post()
    receipt = world.market.cancel(posted.request, sender=world.requester)
    (event,) = receipt.decode_logs(world.market.CancelAnnounced)
    assert (event.requestId, event.effectiveDeadline) == (posted.id, world.now)
    assert world.deadline_of(posted) == world.now
    assert world.status_of(posted) == Status.PENDING
    assert world.credit(world.requester) == 0


def test_cancel__fee_was_raised__keeps_it(world):
    posted = world.post()
    world.market.raisePriorityFee(posted.id, sender=world.stranger, value=11)
    world.market.cancel(posted.request, sender=world.requester)
    assert world.market.pendingOf(posted.id).priorityFeeAdded == 11


def test_cancel__a_second_before_the_deadline__is_taken(world):
    posted = world.post()
    world.next_block_at(posted.deadline - 1)
    world.market.cancel(posted.request, sender=world.requester)
    assert world.deadline_of(posted) == posted.deadline - 1


def test_cancel__at_the_deadline__deadline_passed(world):
    posted = world.post()
    world.next_block_at(posted.deadline)
    expected = {"deadline": posted.deadline, "blockTimestamp": posted.deadline}
    with ape.reverts(world.market.DeadlinePassed, **expected):
        world.market.cancel(posted.request, sender=world.requester)


def test_cancel__twice__deadline_passed(world):
    posted = world.post()
    world.market.cancel(posted.request, sender=world.requester)
    cancelled_at = world.now
    with ape.reverts(world.market.DeadlinePassed, deadline=cancelled_at):
        world.market.cancel(posted.request, sender=world.requester)
    assert world.deadline_of(posted) == cancelled_at


def test_cancel__by_another__not_requester(world):
    posted = world.post()
    expected = {"caller": world.stranger.address, "requester": world.requester.address}
    with ape.reverts(world.market.NotRequester, **expected):
        world.market.cancel(posted.request, sender=world.stranger)


def test_cancel__request_rewritten_to_the_caller__not_pending(world):
    posted = world.post()
    forged = posted.request | {"requester": world.stranger.address}
    with ape.reverts(world.market.NotPending, status=Status.NONE):
        world.market.cancel(forged, sender=world.stranger)


def test_cancel__fulfilled__not_pending(world):
    posted = world.post()
    world.settle(posted)
    with ape.reverts(world.market.NotPending, requestId=posted.id, status=Status.FULFILLED):
        world.market.cancel(posted.request, sender=world.requester)


def test_cancel__round_was_recorded_before__is_still_paid(world):
    posted = world.post()
    round_ = world.record_round()
    world.market.cancel(posted.request, sender=world.requester)
    world.next_block_at(world.now + GRACE)
    receipt = world.submit(world.set_of([builders.item(posted)], round_))
    assert world.statuses(receipt) == [[ItemStatus.OK]]


def test_cancel__round_is_recorded_in_the_same_second__is_still_paid(world):
    posted = world.post()
    world.market.cancel(posted.request, sender=world.requester)
    world.next_block_at(world.now)
    round_ = world.record_round()
    receipt = world.submit(world.set_of([builders.item(posted)], round_))
    assert world.statuses(receipt) == [[ItemStatus.OK]]


def test_cancel__round_is_recorded_a_second_later__is_never_paid(world):
    posted = world.post()
    world.market.cancel(posted.request, sender=world.requester)
    world.next_block_at(world.now + 1)
    round_ = world.record_round()
    receipt = world.submit(world.set_of([builders.item(posted)], round_))
    assert world.statuses(receipt) == [[ItemStatus.NO_ROUND]]


def test_cancel__then_grace_has_passed__expires_with_the_whole_escrow(world):
    posted = world.post()
    world.market.cancel(posted.request, sender=world.requester)
    world.next_block_at(world.now + GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    assert world.status_of(posted) == Status.EXPIRED
    assert world.credit(world.requester) == posted.escrow


def test_cancel__grace_of_the_old_deadline_has_not_passed__expires_all_the_same(world):
    posted = world.post(deadline=world.now + 80_000)
    world.market.cancel(posted.request, sender=world.requester)
    cancelled_at = world.now
    world.next_block_at(cancelled_at + GRACE)
    world.market.expire([posted.request], sender=world.stranger)
    assert world.status_of(posted) == Status.PENDING
    world.next_block_at(cancelled_at + GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    assert world.status_of(posted) == Status.EXPIRED
