from __future__ import annotations

import ape
import pytest

from tests.contracts import builders
from tests.contracts.builders import ItemStatus, item
from tests.contracts.world import _as_tuple


def submit_for(world, result_set, submitter=None, signer=None, valid_until=None, signed_for=None, contract=None):
    submitter = submitter or world.stranger
    valid_until = world.now + 60 if valid_until is None else valid_until
    signature = builders.sign_submitter(
        signer or world.relayer_key,
        contract or world.market.address,
        world.relayer.address,
        (signed_for or submitter).address,
        valid_until,
    )
    sets = [_as_tuple(result_set.build())]
    return world.market.submitResultsFor(world.relayer, sets, valid_until, signature, sender=submitter)


@pytest.fixture
def ready(world):
    """A set of one result that only wants to be submitted."""
    posted = world.post()
    return world.set_of([item(posted)], world.record_round())


def test_submit_results_for__named_submitter__pays_those_who_signed(world, ready):
    receipt = submit_for(world, ready)
    assert world.statuses(receipt) == [[ItemStatus.OK]]
    assert world.credit(world.stranger) == 0
    assert world.credit(world.relayer) == world.shares_in(receipt, ready.items[0]).relayer


def test_submit_results_for__named_submitter__again_and_again_until_its_time(world):
    until = world.now + 1_000
    for _ in range(2):
        posted = world.post()
        receipt = submit_for(world, world.set_of([item(posted)], world.record_round()), valid_until=until)
        assert world.statuses(receipt) == [[ItemStatus.OK]]


def test_submit_results_for__another_than_was_named__not_submitter(world, ready):
    with ape.reverts(world.market.NotSubmitter, caller=world.stranger.address, relayer=world.relayer.address):
        submit_for(world, ready, signed_for=world.owner)


def test_submit_results_for__named_by_another_relayer__not_submitter(world, ready):
    with ape.reverts(world.market.NotSubmitter):
        submit_for(world, ready, signer=world.node_key)


def test_submit_results_for__named_for_another_contract__not_submitter(world, ready):
    with ape.reverts(world.market.NotSubmitter):
        submit_for(world, ready, contract=world.log.address)


def test_submit_results_for__validity__counts_to_the_second(world, ready):
    until = world.now + 100
    world.next_block_at(until + 1)
    with ape.reverts(world.market.SignatureExpired, validUntil=until, blockTimestamp=until + 1):
        submit_for(world, ready, valid_until=until)


def test_submit_results_for__last_second__is_good(world, ready):
    until = world.now + 100
    world.next_block_at(until)
    assert world.statuses(submit_for(world, ready, valid_until=until)) == [[ItemStatus.OK]]


def test_submit_results_for__nobody_as_relayer__not_submitter(world, ready):
    """A signature that cannot be recovered is not the zero relayer's."""
    with ape.reverts(world.market.NotSubmitter):
        world.market.submitResultsFor(
            builders.ZERO, [_as_tuple(ready.build())], world.now + 60, bytes(65), sender=world.stranger
        )
