from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts.builders import Mode, Status


def post(world, many, prompts=None, value=None):
    prompts = [b""] * len(many) if prompts is None else prompts
    value = sum(p.escrow for p in many) if value is None else value
    params = [p.params for p in many]
    return world.market.requestInferenceBatch(params, prompts, sender=world.requester, value=value)


def test_request_inference_batch__several__each_is_pending_and_logged(world):
    prompt = b"inline"
    many = [
        world.prepare(),
        world.prepare(promptHash=keccak(prompt), promptBytes=len(prompt), maxReward=1),
        world.prepare(lane=1),
    ]
    receipt = post(world, many, [b"", prompt, b""])
    events = receipt.decode_logs(world.market.InferenceRequested)
    assert [event.requestId for event in events] == [p.id for p in many]
    assert [event.prompt for event in events] == [b"", prompt, b""]
    assert [world.status_of(world.track(p)) for p in many] == [Status.PENDING] * 3


def test_request_inference_batch__ids__are_returned_in_order(world):
    many = [world.prepare() for _ in range(3)]
    params = [p.params for p in many]
    value = sum(p.escrow for p in many)
    ids = world.market.requestInferenceBatch.call(params, [b""] * 3, sender=world.requester, value=value)
    assert list(ids) == [p.id for p in many]


def test_request_inference_batch__nothing__empty_batch(world):
    with ape.reverts(world.market.EmptyBatch):
        post(world, [], value=1)


@pytest.mark.parametrize("prompts", [0, 1, 3])
def test_request_inference_batch__other_number_of_prompts__length_mismatch(world, prompts):
    with ape.reverts(world.market.LengthMismatch, expected=2, got=prompts):
        post(world, [world.prepare(), world.prepare()], [b""] * prompts)


def test_request_inference_batch__same_request_twice__request_exists(world):
    posted = world.prepare()
    with ape.reverts(world.market.RequestExists, requestId=posted.id):
        post(world, [posted, posted])


def test_request_inference_batch__one_is_refused__all_are(world):
    good, bad = world.prepare(), world.prepare(mode=Mode.OPTIMISTIC)
    with ape.reverts(world.market.UnsupportedMode, mode=Mode.OPTIMISTIC):
        post(world, [good, bad])
    assert world.status_of(good) == Status.NONE


def test_request_inference_batch__one_wei_short_of_the_sum__escrow_short(world):
    many = [world.prepare(), world.prepare()]
    total = sum(p.escrow for p in many)
    with ape.reverts(world.market.EscrowShort, required=total, available=total - 1):
        post(world, many, value=total - 1)


def test_request_inference_batch__sent_more__is_credited_once(world):
    many = [world.track(world.prepare()) for _ in range(2)]
    post(world, many, value=sum(p.escrow for p in many) + 9)
    assert world.credit(world.requester) == 9


def test_request_inference_batch__credit_covers_the_rest__is_taken_once(world):
    many = [world.track(world.prepare()) for _ in range(2)]
    world.market.deposit(world.requester, sender=world.requester, value=many[0].escrow + 1)
    post(world, many, value=many[1].escrow)
    assert world.credit(world.requester) == 1


def test_request_inference_batch__paused__requests_paused(world):
    world.market.setRequestsPaused(True, sender=world.owner)
    with ape.reverts(world.market.RequestsPaused):
        post(world, [world.prepare()])
