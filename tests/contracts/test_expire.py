from __future__ import annotations

from tests.contracts.builders import GRACE, Status


def expire(world, *requests):
    return world.market.expire(list(requests), sender=world.stranger)


def test_expire__a_second_after_grace__refunds_everything(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE + 1)
    receipt = expire(world, posted.request)
    (event,) = receipt.decode_logs(world.market.RequestClosed)
    assert (event.requestId, event.requester) == (posted.id, world.requester.address)
    assert (event.status, event.refund) == (Status.EXPIRED, posted.escrow)
    assert world.status_of(posted) == Status.EXPIRED
    assert world.credit(world.requester) == posted.escrow


def test_expire__last_second_of_grace__is_skipped(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE)
    receipt = expire(world, posted.request)
    assert receipt.decode_logs(world.market.RequestClosed) == []
    assert world.status_of(posted) == Status.PENDING


def test_expire__twice_in_a_batch__refunds_once(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE + 1)
    expire(world, posted.request, posted.request)
    assert world.credit(world.requester) == posted.escrow


def test_expire__twice__refunds_once(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE + 1)
    expire(world, posted.request)
    expire(world, posted.request)
    assert world.credit(world.requester) == posted.escrow


def test_expire__mixed_batch__skips_what_is_not_due(world):
    due, fulfilled = world.post(), world.post()
    late = world.post(deadline=world.now + 5_000)
    unknown = world.prepare()
    world.settle(fulfilled)
    before = world.credit(world.requester)
    world.next_block_at(due.deadline + GRACE + 1)
    expire(world, unknown.request, fulfilled.request, late.request, due.request)
    assert [world.status_of(p) for p in (unknown, fulfilled, late, due)] == [
        Status.NONE,
        Status.FULFILLED,
        Status.PENDING,
        Status.EXPIRED,
    ]
    assert world.credit(world.requester) == before + due.escrow


def test_expire__amounts_were_tampered_with__is_skipped(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE + 1)
    expire(world, posted.request | {"amounts": posted.request["amounts"] + 1})
    expire(world, posted.request | {"amounts": posted.request["amounts"] | 1 << 255})
    expire(world, posted.request | {"terms": posted.request["terms"] | 1 << 255})
    assert world.status_of(posted) == Status.PENDING


def test_expire__someone_elses_name_on_it__is_skipped(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE + 1)
    expire(world, posted.request | {"requester": world.stranger.address})
    assert world.credit(world.stranger) == 0


def test_expire__many_requesters__each_gets_its_own(world):
    mine, theirs = world.post(), world.post(world.stranger)
    world.next_block_at(theirs.deadline + GRACE + 1)
    expire(world, mine.request, theirs.request)
    assert world.credit(world.requester) == mine.escrow
    assert world.credit(world.stranger) == theirs.escrow


def test_expire__nothing__does_nothing(world):
    assert expire(world).logs == []
