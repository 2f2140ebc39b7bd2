"""Requests of one model over nodes that offer it: what several filters and scorers need, computed once.

Arrays have a row for each request and a column for each node. What is the same for all requests has one row, and what
is the same for all nodes one column: NumPy spreads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headrace.core.cycle import Policy, WaitingRequest
from headrace.core.fees import KIB, THOUSAND_TOKENS, reward_wei
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.columns import MOST, Ints, Mask, capped, column
from headrace.core.routing.cost import (
    LOAD_MS_PER_MB,
    MOST_COMPLEXITY_MILLI,
    MOST_DELAY_WEI_PER_MS,
    MOST_FEE_WEI,
    MOST_MS,
    MOST_REWARD_WEI,
    MOST_TOKENS,
)
from headrace.core.routing.table import Block, NodeTable
from headrace.core.types import MarketTerms, Price


@dataclass(frozen=True, eq=False)
class Candidates:
    """Some requests, all of one model, over the nodes of `block`.

    `rows` are of `asked`; `block.rows` of `nodes`. A block whose arrays are columns themselves has one node for each
    request, and each request may be of another model.
    """

    asked: RequestTable
    rows: Ints
    nodes: NodeTable
    block: Block
    policy: Policy
    terms: MarketTerms
    now_ms: int
    graduated: Mask  # of all nodes, see `NodeTable.is_graduated`

    def over(self, block: Block) -> Candidates:
        """The same requests over other nodes."""
        return replace(self, block=block)

    @cached_property
    def requests(self) -> Sequence[WaitingRequest]:
        """The requests, by row."""
        return [self.asked.requests[row] for row in self.rows.tolist()]

    def of_request(self, name: str) -> Ints:
        """A column of the requests; a single row when all have the same."""
        values = self.asked[name][self.rows]
        return values[:1, None] if len(values) and (values == values[0]).all() else values[:, None]

    def of_node(self, name: str) -> Ints:
        """A column of the nodes."""
        return self.nodes[name][self.block.rows]

    @cached_property
    def rewards_wei(self) -> Ints:
        """What each asks, exact up to `MOST_REWARD_WEI` and anything above it beyond."""
        kibs = -(-self.of_request("prompt_bytes") // KIB)
        thousands = -(-self.of_request("max_output_tokens") // THOUSAND_TOKENS)
        of_kib, of_thousand = self.block.dearest
        if int(kibs.max()) * of_kib + int(thousands.max()) * of_thousand < MOST:
            rewards: Ints = kibs * self.block.per_prompt_kib_wei + thousands * self.block.per_thousand_tokens_wei
            return rewards
        shape = (len(self.rows), self.block.rows.shape[-1])
        of_kibs, of_thousands = (
            np.broadcast_to(prices, shape).tolist()
            for prices in (self.block.per_prompt_kib_wei, self.block.per_thousand_tokens_wei)
        )
        rows = []
        for request, *prices in zip(self.requests, of_kibs, of_thousands, strict=True):
            asks = map(Price, *prices)
            rows.append(column([reward_wei(ask, request.prompt_bytes, request.max_output_tokens) for ask in asks]))
        return np.array(rows)

    @cached_property
    def capped_rewards_wei(self) -> Ints:
        """The same as costs count it."""
        return np.minimum(self.rewards_wei, MOST_REWARD_WEI)

    @cached_property
    def delay_wei_per_ms(self) -> Ints:
        """What a millisecond of waiting costs each request."""
        left_s = np.maximum(1, self.asked["deadline_s"][self.rows] - self.now_ms // 1000)
        fees = np.minimum(self.asked["priority_fee_wei"][self.rows], MOST_FEE_WEI)
        per_s = np.maximum(capped(self.policy.least_delay_wei_per_s), fees // left_s)
        delays: Ints = np.minimum(MOST_DELAY_WEI_PER_MS, per_s // 1000)
        return delays[:, None]

    @cached_property
    def left_ms(self) -> Ints:
        """What each request has until its deadline."""
        return self.of_request("deadline_s") * 1000 - self.now_ms

    @cached_property
    def is_graduated(self) -> Mask:
        """Whose rewards the market does not cap."""
        return self.graduated[self.block.rows]

    @cached_property
    def _places(self) -> Ints:
        return np.maximum(1, self.of_node("max_in_flight"))

    @cached_property
    def _busy_ms(self) -> Ints:
        """From assignment to answer at a node that has nothing else to do."""
        tokens = np.minimum(self.of_request("max_output_tokens"), MOST_TOKENS)
        complexity_milli = np.minimum(self.of_request("complexity_milli"), MOST_COMPLEXITY_MILLI)
        by_pace = tokens * np.minimum(self.block.us_per_token, MOST_MS * 1000) // 1000
        by_word = np.minimum(self.of_node("avg_latency_ms"), MOST_MS) * complexity_milli // 1000
        return np.minimum(MOST_MS, np.where(self.block.us_per_token > 0, by_pace, by_word))

    @cached_property
    def _cold_ms(self) -> Ints:
        load_ms = np.minimum(MOST_MS, np.minimum(self.of_request("required_memory_mb"), MOST_MS) * LOAD_MS_PER_MB)
        return np.where(self.block.is_warm, 0, load_ms)

    @cached_property
    def expected_ms(self) -> Ints:
        """From assignment to answer at each, as the snapshot has them."""
        return self.expected_ms_after(0)

    def expected_ms_after(self, placed: int | Ints) -> Ints:
        """The same when each node was given so many before it in this cycle."""
        taken = np.minimum(self.of_node("in_flight") + placed, self._places)
        expected: Ints = np.minimum(MOST_MS, self._busy_ms * (self._places + taken) // self._places + self._cold_ms)
        return expected
