from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts.conftest import PRICE_NOTICE

MODEL, OTHER = keccak(text="tiny"), keccak(text="small")


def set_price(world, per_kib, per_tokens, model=MODEL):
    return world.stakes.setPrices(world.node, [model], [per_kib], [per_tokens], sender=world.node_owner)


def price(world, model=MODEL) -> tuple:
    return tuple(world.stakes.priceOf(world.node, model))


def test_set_prices__new_models__hold_at_once(world):
    receipt = world.stakes.setPrices(world.node, [MODEL, OTHER], [1, 2], [30, 40], sender=world.node_owner)
    events = receipt.decode_logs(world.stakes.PriceAnnounced)
    assert [(e.modelId, e.perPromptKiB, e.perThousandTokens) for e in events] == [
        (MODEL, 1, 30),
        (OTHER, 2, 40),
    ]
    assert {(e.key, e.effectiveAt) for e in events} == {(world.node, world.now)}
    assert (price(world), price(world, OTHER)) == ((True, 1, 30), (True, 2, 40))


def test_set_prices__lower__holds_at_once(world):
    set_price(world, 10, 100)
    set_price(world, 9, 100)
    assert price(world) == (True, 9, 100)


@pytest.mark.parametrize(("per_kib", "per_tokens"), [(11, 100), (10, 101), (5, 101)])
def test_set_prices__either_is_higher__holds_after_the_notice(world, per_kib, per_tokens):
    set_price(world, 10, 100)
    receipt = set_price(world, per_kib, per_tokens)
    effective_at = receipt.timestamp + PRICE_NOTICE
    assert receipt.decode_logs(world.stakes.PriceAnnounced)[0].effectiveAt == effective_at
    world.mine_at(effective_at - 1)
    assert price(world) == (True, 10, 100)
    world.mine_at(effective_at)
    assert price(world) == (True, per_kib, per_tokens)


def test_set_prices__lower_while_a_raise_waits__takes_the_raise_back(world):
    set_price(world, 10, 100)
    set_price(world, 20, 200)
    set_price(world, 9, 90)
    world.mine_at(world.now + PRICE_NOTICE)
    assert price(world) == (True, 9, 90)


def test_set_prices__another_raise_while_one_waits__waits_anew(world):
    set_price(world, 10, 100)
    set_price(world, 20, 200)
    world.mine_at(world.now + PRICE_NOTICE - 10)
    set_price(world, 15, 150)
    world.mine_at(world.now + PRICE_NOTICE - 1)
    assert price(world) == (True, 10, 100)
    world.mine_at(world.now + 1)
    assert price(world) == (True, 15, 150)


def test_set_prices__raise_after_a_raise_that_holds__starts_from_the_new_one(world):
    set_price(world, 10, 100)
    set_price(world, 20, 200)
    world.mine_at(world.now + PRICE_NOTICE)
    set_price(world, 30, 300)
    assert price(world) == (True, 20, 200)


@pytest.mark.parametrize(("per_kib", "per_tokens", "got"), [([1], [1, 2], 1), ([1, 2], [1], 1), ([], [], 0)])
def test_set_prices__lists_of_other_lengths__length_mismatch(world, per_kib, per_tokens, got):
    with ape.reverts(world.stakes.LengthMismatch, expected=2, got=got):
        world.stakes.setPrices(world.node, [MODEL, OTHER], per_kib, per_tokens, sender=world.node_owner)


def test_withdraw_models__offered__is_offered_no_more(world):
    set_price(world, 10, 100)
    set_price(world, 10, 100, OTHER)
    receipt = world.stakes.withdrawModels(world.node, [MODEL], sender=world.node_owner)
    (event,) = receipt.decode_logs(world.stakes.ModelWithdrawn)
    assert (event.key, event.modelId) == (world.node, MODEL)
    assert price(world) == (False, 0, 0)
    assert price(world, OTHER) == (True, 10, 100)


def test_set_prices__withdrawn_and_offered_dearer__holds_after_the_notice(world):
    """Or the notice could be had for one more transaction."""
    set_price(world, 10, 100)
    world.stakes.withdrawModels(world.node, [MODEL], sender=world.node_owner)
    effective_at = set_price(world, 11, 100).timestamp + PRICE_NOTICE
    world.mine_at(effective_at - 1)
    assert price(world) == (True, 10, 100)
    world.mine_at(effective_at)
    assert price(world) == (True, 11, 100)


@pytest.mark.parametrize(("after", "held"), [(PRICE_NOTICE - 1, 10), (PRICE_NOTICE, 11)])
def test_set_prices__withdrawn_for_a_whole_notice__is_new(world, after, held):
    set_price(world, 10, 100)
    withdrawn = world.stakes.withdrawModels(world.node, [MODEL], sender=world.node_owner)
    world.next_block_at(withdrawn.timestamp + after)
    set_price(world, 11, 100)
    assert price(world) == (True, held, 100)


def test_set_prices__withdrawn_and_offered_cheaper__holds_at_once(world):
    set_price(world, 10, 100)
    world.stakes.withdrawModels(world.node, [MODEL], sender=world.node_owner)
    set_price(world, 9, 100)
    assert price(world) == (True, 9, 100)


def test_withdraw_models__never_offered__does_not_make_it_known(world):
    world.stakes.withdrawModels(world.node, [MODEL], sender=world.node_owner)
    set_price(world, 10, 100)
    assert price(world) == (True, 10, 100)


def test_price_of__never_offered__is_not_offered(world):
    assert price(world) == (False, 0, 0)
