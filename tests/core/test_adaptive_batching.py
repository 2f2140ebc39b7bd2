"""Policy `adaptive`: what goes together, when it goes, and what waits for a better price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.adaptive_batching import AdaptivePolicy, BatchChoice, Market, Ready, charge_wei, choose_batch
from headrace.core.batching import BatchReason
from headrace.core.types import GasQuote, Lane
from tests.fakes import GWEI, TERMS

NOW_MS = 1_800_000_000_000
POLICY = AdaptivePolicy()
SLOT_MS = 12_000
MARKET = Market(TERMS, GasQuote(20 * GWEI, GWEI), last_block_ms=NOW_MS - 1_000, block_interval_ms=SLOT_MS)
JUST_BEFORE_MS = NOW_MS + 9_500  # the next block comes at + 11 s
RICH_WEI = 10**18


def ready(**changes: Any) -> Ready:
    fields = {
        "ready_at_ms": NOW_MS,
        "end_ms": NOW_MS + 600_000,
        "lane": Lane.BULK,
        "batchable": True,
        "priority_fee_wei": 0,
        "gas_budget_wei": RICH_WEI,
    }
    return Ready(**fields | changes)


def choose(*given_: Ready, now_ms: int = JUST_BEFORE_MS, chance: float = 0.0, **changes: Any) -> BatchChoice:
    return choose_batch(POLICY, now_ms, given_, replace(MARKET, **changes), chance)


def budget_for(size: int, market: Market = MARKET) -> int:
    """The least gas budget that pays for a batch of this size with the margin."""
    return -(-charge_wei(ready(), size, market) * POLICY.margin_milli // 1000)


# When


def test_when__a_block_was_just_made__waits_until_shortly_before_the_next() -> None:
    choice = choose(ready(), ready(), now_ms=NOW_MS)
    assert (choice.reason, choice.until_ms) == (None, NOW_MS + 11_000 - POLICY.block_margin_ms)


def test_when__shortly_before_a_block__goes() -> None:
    assert choose(ready(), ready()) == BatchChoice(BatchReason.BLOCK, (0, 1))


def test_when__a_batch_went_for_the_next_block__waits_for_the_one_after() -> None:
    choice = choose(ready(), last_sent_ms=JUST_BEFORE_MS - 100)
    assert (choice.reason, choice.until_ms) == (None, NOW_MS + 23_000 - POLICY.block_margin_ms)
    assert choose(ready(), last_sent_ms=NOW_MS - 2_000).reason is BatchReason.BLOCK


def test_when__blocks_cannot_be_told__goes_at_once() -> None:
    assert choose(ready(), now_ms=NOW_MS, block_interval_ms=0).reason is BatchReason.BLOCK
    stalled = choose(ready(), now_ms=NOW_MS, last_block_ms=NOW_MS - 4 * SLOT_MS)
    assert stalled.reason is BatchReason.BLOCK


def test_when__full__goes_whatever_the_time() -> None:
    choice = choose(*[ready()] * (POLICY.max_items + 3), now_ms=NOW_MS)
    assert (choice.reason, len(choice.chosen)) == (BatchReason.FULL, POLICY.max_items)


def test_when__a_deadline_nears__takes_the_very_next_block() -> None:
    near = ready(end_ms=JUST_BEFORE_MS + POLICY.deadline_margin_ms)
    assert choose(near, ready()) == BatchChoice(BatchReason.DEADLINE, (0, 1))
    assert choose(near, last_sent_ms=JUST_BEFORE_MS - 1).reason is BatchReason.DEADLINE
    assert choose(near, block_interval_ms=0).reason is BatchReason.DEADLINE
    early = choose(ready(end_ms=NOW_MS + POLICY.deadline_margin_ms), now_ms=NOW_MS)
    assert (early.reason, early.until_ms) == (None, NOW_MS + 11_000 - POLICY.block_margin_ms)


def test_when__another_is_likely_and_saves_more_than_the_wait_costs__waits_for_another_block() -> None:
    assert choose(ready(), chance=0.9).reason is None
    assert choose(ready(), chance=0.0).reason is BatchReason.BLOCK


def test_when__gas_is_nearly_free__nothing_is_saved_by_waiting() -> None:
    assert choose(ready(), chance=0.9, gas=GasQuote(1, 1)).reason is BatchReason.BLOCK


def test_when__realtime_or_not_to_be_batched__takes_the_next_block() -> None:
    for changes in ({"lane": Lane.REALTIME}, {"batchable": False}):
        assert choose(ready(**changes), ready(), chance=0.9) == BatchChoice(BatchReason.BLOCK, (0, 1))


def test_when__waited_for_others_long_enough__goes() -> None:
    assert choose(ready(ready_at_ms=JUST_BEFORE_MS - POLICY.longest_wait_ms), chance=0.9).reason is BatchReason.BLOCK


def test_when__its_own_time_is_dear__goes() -> None:
    assert choose(ready(priority_fee_wei=10**18), chance=0.9).reason is BatchReason.BLOCK


@given(st.lists(st.integers(0, 120_000), min_size=1, max_size=8), st.floats(0, 1))
def test_when__delays_have_cost_as_much_as_a_fixed_part__never_waits_for_another(
    waited_ms: list[int], chance: float
) -> None:
    fee_wei = 10**15
    given_ = [ready(ready_at_ms=JUST_BEFORE_MS - each, priority_fee_wei=fee_wei) for each in waited_ms]
    choice = choose(*given_, chance=chance)
    per_s = fee_wei // ((given_[0].end_ms - JUST_BEFORE_MS) // 1000)
    cost_wei = sum(per_s * each // 1000 for each in waited_ms)
    if cost_wei >= TERMS.fixed_gas * MARKET.gas.price_wei:
        assert choice.reason is not None


# What


def test_what__charge_with_its_margin_is_beyond_the_budget__waits_for_a_better_price() -> None:
    short = ready(gas_budget_wei=budget_for(1) - 1)
    assert choose(short).held == (0,)
    assert choose(replace(short, gas_budget_wei=budget_for(1))).chosen == (0,)
    assert choose(short, gas=GasQuote(10 * GWEI, GWEI)).chosen == (0,)


def test_what__together_they_can_pay__go_together() -> None:
    pair = [ready(gas_budget_wei=budget_for(2))] * 2
    assert choose(*pair).chosen == (0, 1)
    assert choose(pair[0]).held == (0,)


def test_what__one_that_cannot_pay_leaves__the_rest_is_reckoned_anew() -> None:
    choice = choose(ready(gas_budget_wei=budget_for(3)), ready(gas_budget_wei=1), ready(gas_budget_wei=budget_for(3)))
    assert (choice.chosen, choice.held) == ((), (0, 1, 2))
    choice = choose(ready(gas_budget_wei=budget_for(2)), ready(gas_budget_wei=1), ready(gas_budget_wei=budget_for(2)))
    assert (choice.chosen, choice.held) == ((0, 2), (1,))


def test_what__a_deadline_nears__goes_whatever_gas_costs() -> None:
    poor = ready(gas_budget_wei=1, end_ms=JUST_BEFORE_MS + POLICY.deadline_margin_ms)
    assert choose(poor, ready(gas_budget_wei=1)) == BatchChoice(BatchReason.DEADLINE, (0,), (1,))


def test_what__realtime_was_held_long__goes_as_soon_as_its_budget_pays_at_all() -> None:
    short = ready(lane=Lane.REALTIME, gas_budget_wei=charge_wei(ready(), 1, MARKET))
    assert choose(short).held == (0,)
    held_ms = POLICY.longest_realtime_hold_ms + 1
    assert choose(replace(short, ready_at_ms=JUST_BEFORE_MS - held_ms)).chosen == (0,)
    assert choose(replace(short, lane=Lane.BULK, ready_at_ms=JUST_BEFORE_MS - held_ms)).held == (0,)


def test_what__data_of_a_rollup__counts_against_the_budget() -> None:
    assert choose(ready(gas_budget_wei=budget_for(1), data_fee_wei=10**12)).held == (0,)


@given(st.lists(st.integers(0, 5).map(lambda each: each * 10**15), max_size=60), st.integers(1, 400))
def test_what__each_that_goes_can_pay_for_the_batch_that_goes_and_no_larger_set_can(
    budgets: list[int], gwei: int
) -> None:
    market = replace(MARKET, gas=GasQuote(gwei * GWEI, GWEI))
    given_ = [ready(gas_budget_wei=each) for each in budgets]
    choice = choose_batch(POLICY, JUST_BEFORE_MS, given_, market, 0)
    size = len(choice.chosen)
    for number in choice.chosen:
        assert budgets[number] >= budget_for(size, market)
    able = max(
        (n for n in range(1, len(budgets) + 1) if sum(b >= budget_for(n, market) for b in budgets) >= n), default=0
    )
    assert size == min(able, POLICY.max_items)
