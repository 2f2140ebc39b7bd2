"""The chain of a run: its blocks, the batches that are on their way, and what each result cost whom."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.adaptive_batching import AdaptivePolicy, Market, Ready, choose_batch
from headrace.core.arrivals import Arrivals
from headrace.core.batching import BatchPolicy, why_send
from headrace.core.bidding import market_bid
from headrace.core.block_clock import BlockClock
from headrace.core.cycle import WaitingRequest
from headrace.core.fees import BPS, charged_gas, charged_gas_price_wei
from headrace.core.types import Address, GasQuote, MarketTerms
from headrace.sim.schedule.scenario import Scenario
from headrace.sim.traces import TracedBlock


@dataclass(frozen=True, slots=True)
class Result:
    """A result that waits for its settlement."""

    request: WaitingRequest
    node: Address
    reward_wei: int
    ready_at_ms: int

    @property
    def ready(self) -> Ready:
        """As batching sees it."""
        return Ready(
            self.ready_at_ms,
            self.request.deadline_s * 1000,
            self.request.lane,
            self.request.batchable,
            self.request.priority_fee_wei,
            self.request.gas_budget_wei,
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a result. Wei; `relayer_wei` is after gas."""

    result: Result
    at_ms: int
    gas_used: int
    node_wei: int
    relayer_wei: int
    requester_wei: int


@dataclass(frozen=True, slots=True)
class _Batch:
    results: tuple[Result, ...]
    after_block: int
    max_fee_wei: int


class Chain:
    """Blocks of a trace in a run's time, and the settlement of results in them."""

    def __init__(
        self,
        scenario: Scenario,
        blocks: Sequence[TracedBlock],
        start: int,
        terms: MarketTerms,
        batching: BatchPolicy | AdaptivePolicy,
    ) -> None:
        """
        Args:
            scenario: for gas and landing.
            blocks: of the trace, one after the other.
            start: the index of the block that the run starts at.
            terms: of the market.
            batching: when results are sent.
        """
        self._scenario = scenario
        self._terms = terms
        self._batching = batching
        origin_s = blocks[start].timestamp_s
        self._times_ms = [(each.timestamp_s - origin_s) * 1000 for each in blocks[start:]]
        self._fees = [max(1, round(each.base_fee_wei * scenario.chain.fee_scale)) for each in blocks[start:]]
        self._ready: list[Result] = []
        self._on_way: list[_Batch] = []
        self._arrivals = Arrivals()
        self._clock = BlockClock()
        self._sent_ms = -(10**9)
        self.settled: list[Settled] = []
        self.batches: list[int] = []
        self.gas_used = 0
        self.late = 0  # results that were not paid, since their batch came too late

    @property
    def blocks_ms(self) -> Sequence[int]:
        """When each block comes."""
        return self._times_ms

    def quote(self, now_ms: int) -> GasQuote:
        """The price of the next block, as every node knows it."""
        following = min(bisect_right(self._times_ms, now_ms), len(self._fees) - 1)
        return GasQuote(self._fees[following], self._scenario.chain.tip_wei)

    def deliver(self, result: Result) -> None:
        """A node answered."""
        self._ready.append(result)
        self._arrivals.note(result.request.model_id, result.ready_at_ms)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be settled."""
        return not self._ready and not self._on_way

    def look(self, now_ms: int, epoch_ms: int) -> int | None:
        """Send what it is time for.

        Args:
            now_ms: of the run.
            epoch_ms: what Unix time the run started at.

        Returns:
            When to look again, if at a time.
        """
        while self._ready:
            chosen, again_ms = self._choice(now_ms, epoch_ms)
            if not chosen:
                return again_ms
            self._send([self._ready[number] for number in chosen], now_ms)
            gone = set(chosen)
            self._ready = [each for number, each in enumerate(self._ready) if number not in gone]
        return None

    def _choice(self, now_ms: int, epoch_ms: int) -> tuple[Sequence[int], int]:
        at_ms, policy = epoch_ms + now_ms, self._batching
        if isinstance(policy, AdaptivePolicy):
            interval_ms = self._clock.interval_ms
            market = Market(
                self._terms, self.quote(now_ms), self._clock.last_block_ms, interval_ms, epoch_ms + self._sent_ms
            )
            chance = self._arrivals.chance_of_another(at_ms, max(interval_ms, 1_000))
            choice = choose_batch(policy, at_ms, [each.ready for each in self._ready], market, chance)
            return choice.chosen if choice.reason else (), max(now_ms + 100, choice.until_ms - epoch_ms)
        oldest_ms = min(each.ready_at_ms for each in self._ready)
        nearest_ms = min(each.request.deadline_s for each in self._ready) * 1000
        if why_send(policy, at_ms, len(self._ready), oldest_ms, nearest_ms):
            return range(min(len(self._ready), policy.max_items)), 0
        due_ms = min(oldest_ms + policy.max_age_ms, nearest_ms - policy.deadline_margin_ms)
        return (), max(now_ms + 1, due_ms - epoch_ms)

    def _send(self, results: Sequence[Result], now_ms: int) -> None:
        bid = market_bid(self.quote(now_ms))
        following = bisect_right(self._times_ms, now_ms)
        self._on_way.append(
            _Batch(tuple(results), following + self._scenario.chain.landing_blocks - 1, bid.max_fee_wei)
        )
        self.batches.append(len(results))
        self._sent_ms = now_ms

    def block(self, number: int, epoch_ms: int) -> None:
        """A block came: what may land in it does."""
        self._clock.note(number, (epoch_ms + self._times_ms[number]) // 1000)
        waiting = []
        for batch in self._on_way:
            if number >= batch.after_block and self._fees[number] <= batch.max_fee_wei:
                self._settle(batch, number, epoch_ms)
            else:
                waiting.append(batch)
        self._on_way = waiting

    def _settle(self, batch: _Batch, number: int, epoch_ms: int) -> None:
        gas, size = self._scenario.gas, len(batch.results)
        tip_wei = min(self._scenario.chain.tip_wei, batch.max_fee_wei - self._fees[number])
        price = GasQuote(self._fees[number], tip_wei)
        requesters = len({each.request.requester for each in batch.results})
        used = gas.used_fixed_gas + gas.used_item_gas * (size - 1) + gas.used_requester_gas * (requesters - 1)
        self.gas_used += used
        for result in batch.results:
            # The record of its round goes with it, and must be there by the deadline: what comes later is not paid.
            if self._times_ms[number] + epoch_ms > result.request.deadline_s * 1000:
                self.late += 1
                continue
            charge_wei = charged_gas(self._terms, size, 0) * charged_gas_price_wei(self._terms, price)
            self.settled.append(self._paid(result, number, charge_wei, used // size, price.price_wei))

    def _paid(self, result: Result, number: int, charge_wei: int, used: int, price_wei: int) -> Settled:
        """As `fees.payout` has it, of the parts that a run has."""
        request = result.request
        gas_wei = min(request.gas_budget_wei, charge_wei)
        saving_wei = (request.gas_budget_wei - gas_wei) * self._terms.relayer_saving_share_bps // BPS
        fee_share_wei = request.priority_fee_wei * self._terms.relayer_fee_share_bps // BPS
        node_wei = result.reward_wei + request.priority_fee_wei - fee_share_wei
        relayer_wei = gas_wei + saving_wei + fee_share_wei
        profit_wei = relayer_wei - used * price_wei
        return Settled(result, self._times_ms[number], used, node_wei, profit_wei, node_wei + relayer_wei)
