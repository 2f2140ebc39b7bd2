"""When a batch of ready results is sent, and with which: policy `adaptive`.

A batch pays a fixed part of its gas once, however many results it settles. Waiting for one more result saves a fixed
part; it costs those that wait their time. So:

- What is ready is settled with the next block and no sooner: until shortly before it, waiting costs nobody anything.
- A block later only while what one more result would save, by the chance that one comes, is above what the delay costs
  those that wait; and never once their delays have cost as much as a fixed part (the rule that loses at most as much
  again as knowing the future would save: Dooly, Goldman, Scott, "On-line analysis of the TCP acknowledgment delay
  problem", 2001). Results of the realtime lane, and those that are not to be batched, do not wait for another block.
- Where blocks come at no fixed time, the same is asked second by second, and realtime waits six of them at most.
- A result whose charge, at the price of the next block and this batch's size, is within a margin of its gas budget is
  paid in full. One that is not waits, as long as its deadline allows: the price may fall, or more results may share.

The price of the next block is known exactly (`core.base_fee`). For what comes after, today's price is the best guess;
the margin of 1.5 covers the three steepest rises in a row, (9/8)³ = 1.42.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.batching import BatchReason
from headrace.core.fees import charged_gas, charged_gas_price_wei
from headrace.core.gas import call_out_gas
from headrace.core.types import GasQuote, Lane, MarketTerms

_MILLI = 1_000


@dataclass(frozen=True, slots=True)
class AdaptivePolicy:
    """The bounds of policy `adaptive`.

    Args:
        max_items: of a batch.
        deadline_margin_ms: before a result can no longer be paid, when it goes whatever gas costs.
        block_margin_ms: before the next block is expected, when a batch goes that is to be in it; a quarter of the
            time between blocks where that is less.
        margin_milli: what a charge is multiplied with before it is held against a gas budget, in thousandths.
        longest_wait_ms: of a result for others; not for its price.
        longest_realtime_wait_ms: the same in the realtime lane, where blocks come at no fixed time.
        longest_realtime_hold_ms: of a result of the realtime lane, or one that is not to be batched, for its price with
            the margin: after it goes as soon as its charge is within its budget at all.
        least_delay_wei_per_s: what a second costs a result whose priority fee says less.
    """

    max_items: int = 50
    deadline_margin_ms: int = 15_000
    block_margin_ms: int = 2_000
    margin_milli: int = 1_500
    longest_wait_ms: int = 36_000
    longest_realtime_wait_ms: int = 12_000
    longest_realtime_hold_ms: int = 24_000
    least_delay_wei_per_s: int = 10**12


@dataclass(frozen=True, slots=True)
class Ready:
    """A result that can be settled.

    Args:
        ready_at_ms: since when.
        end_ms: when it can no longer be paid.
        lane: of its request.
        batchable: whether its request may wait for others.
        priority_fee_wei: of its request.
        gas_budget_wei: likewise.
        nodes: how many signed it.
        result_bytes: that go on-chain.
        callback_gas: of its request.
        verifier_gas: what its verifier is counted with.
        data_fee_wei: its share of what the transaction's data costs, see `core.gas_model`.
    """

    ready_at_ms: int
    end_ms: int
    lane: Lane
    batchable: bool
    priority_fee_wei: int
    gas_budget_wei: int
    nodes: int = 1
    result_bytes: int = 0
    callback_gas: int = 0
    verifier_gas: int = 0
    data_fee_wei: int = 0


@dataclass(frozen=True, slots=True)
class Market:
    """What the chain is like now.

    Args:
        terms: of the market.
        gas: the price of the next block.
        last_block_ms: when the last block was made, by its own time.
        block_interval_ms: between blocks as of late; 0 when there is no telling.
        last_sent_ms: when a batch went last. There is one for each block: what becomes ready between a batch and its
            block goes with the next.
    """

    terms: MarketTerms
    gas: GasQuote
    last_block_ms: int = 0
    block_interval_ms: int = 0
    last_sent_ms: int = 0


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """What to do now: send these results, for a reason; or nothing until a time.

    `chosen` are numbers of the results that were given, `held` of those that wait for a better price.
    """

    reason: BatchReason | None
    chosen: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    until_ms: int = 0


def choose_batch(
    policy: AdaptivePolicy, now_ms: int, ready: Sequence[Ready], market: Market, chance_of_another: float
) -> BatchChoice:
    """Which results to settle now, if any.

    Args:
        policy: the bounds.
        now_ms: Unix time.
        ready: what can be settled, the first to go first.
        market: what the chain is like.
        chance_of_another: that one more result becomes ready before the block after the next.
    """
    urgent = {number for number, each in enumerate(ready) if each.end_ms - now_ms <= policy.deadline_margin_ms}
    chosen = _payable(policy, now_ms, ready, urgent, market)
    held = tuple(number for number in range(len(ready)) if number not in chosen)
    numbers = tuple(number for number in range(len(ready)) if number in chosen)[: policy.max_items]
    if not numbers:
        return BatchChoice(None, (), held, _next_block_ms(now_ms, market) or now_ms + _MILLI)
    if len(chosen) >= policy.max_items:
        return BatchChoice(BatchReason.FULL, numbers, held)
    send_at_ms = _send_at_ms(policy, now_ms, market, is_urgent=bool(urgent))
    if now_ms < send_at_ms:
        return BatchChoice(None, (), held, send_at_ms)
    if urgent:
        return BatchChoice(BatchReason.DEADLINE, numbers, held)
    if _is_worth_another_block(policy, now_ms, [ready[number] for number in numbers], market, chance_of_another):
        return BatchChoice(None, (), held, send_at_ms + (market.block_interval_ms or _MILLI))
    return BatchChoice(BatchReason.BLOCK, numbers, held)


def charge_wei(each: Ready, batch_size: int, market: Market) -> int:
    """What a result of a batch of this size costs: what its request is charged for it, and its share of the data."""
    gas = charged_gas(market.terms, batch_size, each.result_bytes, each.nodes)
    gas += call_out_gas(each.callback_gas, each.verifier_gas)
    return gas * charged_gas_price_wei(market.terms, market.gas) + each.data_fee_wei


def delay_wei_per_s(policy: AdaptivePolicy, each: Ready, now_ms: int) -> int:
    """What a second of waiting costs a result, as routing has it: its priority fee over the seconds that are left."""
    left_s = max(1, (each.end_ms - now_ms) // _MILLI)
    return max(policy.least_delay_wei_per_s, each.priority_fee_wei // left_s)


def _payable(policy: AdaptivePolicy, now_ms: int, ready: Sequence[Ready], urgent: set[int], market: Market) -> set[int]:
    """The most that can go together with each charge, times the margin, within its budget; and what is urgent.

    The fewer go, the more each is charged, so those that cannot pay for the largest batch leave first.
    """
    chosen = set(range(len(ready)))
    margins = [_margin_milli(policy, now_ms, each) for each in ready]
    while True:
        size = min(policy.max_items, max(1, len(chosen)))
        short = {
            number
            for number in chosen - urgent
            if charge_wei(ready[number], size, market) * margins[number] > ready[number].gas_budget_wei * _MILLI
        }
        if not short:
            return chosen
        chosen -= short


def _margin_milli(policy: AdaptivePolicy, now_ms: int, each: Ready) -> int:
    may_wait = each.batchable and each.lane is not Lane.REALTIME
    is_held_long = now_ms - each.ready_at_ms > policy.longest_realtime_hold_ms
    return policy.margin_milli if may_wait or not is_held_long else _MILLI


def _longest_wait_ms(policy: AdaptivePolicy, each: Ready) -> int:
    if not each.batchable:
        return 0
    return policy.longest_realtime_wait_ms if each.lane is Lane.REALTIME else policy.longest_wait_ms


def _next_block_ms(now_ms: int, market: Market) -> int:
    """When the next block is expected; 0 when there is no telling."""
    interval_ms = market.block_interval_ms
    behind_ms = now_ms - market.last_block_ms
    # A chain that has made none for long makes them as transactions come.
    if interval_ms <= 0 or not 0 <= behind_ms < 4 * interval_ms:
        return 0
    return market.last_block_ms + (behind_ms // interval_ms + 1) * interval_ms


def _send_at_ms(policy: AdaptivePolicy, now_ms: int, market: Market, *, is_urgent: bool) -> int:
    """When a batch has to go to be in the next block that none went for, or in the next one of all if it is urgent; now
    when there is no telling."""
    next_ms, interval_ms = _next_block_ms(now_ms, market), market.block_interval_ms
    if not next_ms:
        return now_ms
    if market.last_sent_ms > next_ms - interval_ms and not is_urgent:
        next_ms += interval_ms
    return next_ms - min(policy.block_margin_ms, interval_ms // 4)


def _is_worth_another_block(
    policy: AdaptivePolicy, now_ms: int, going: Sequence[Ready], market: Market, chance_of_another: float
) -> bool:
    wait_ms = market.block_interval_ms or _MILLI
    if any(now_ms + wait_ms - each.ready_at_ms > _longest_wait_ms(policy, each) for each in going):
        return False
    fixed_wei = market.terms.fixed_gas * market.gas.price_wei
    rates = [delay_wei_per_s(policy, each, now_ms) for each in going]
    waited_wei = sum(
        rate * max(0, now_ms - each.ready_at_ms) // _MILLI for rate, each in zip(rates, going, strict=True)
    )
    saved_wei = math.floor(fixed_wei * chance_of_another)
    return waited_wei < fixed_wei and sum(rates) * wait_ms // _MILLI < saved_wei
