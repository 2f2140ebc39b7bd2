"""A request over the nodes that offer its model: what several filters and scorers need, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.core.cycle import Policy, WaitingRequest
from headrace.core.routing.cost import (
    LOAD_MS_PER_MB,
    MOST_COMPLEXITY_MILLI,
    MOST_MS,
    MOST_REWARD_WEI,
    MOST_TOKENS,
    delay_wei_per_ms,
)
from headrace.core.routing.table import Block, Ints, NodeTable


@dataclass(frozen=True, eq=False)
class Candidates:
    """Columns over the nodes of `block`, in its order."""

    request: WaitingRequest
    table: NodeTable
    block: Block
    policy: Policy
    now_ms: int

    @cached_property
    def rewards_wei(self) -> Ints:
        """What each asks."""
        return self.block.rewards_wei(self.request)

    @cached_property
    def capped_rewards_wei(self) -> Ints:
        """The same as costs count it."""
        return np.minimum(self.rewards_wei, MOST_REWARD_WEI)

    @cached_property
    def delay_wei_per_ms(self) -> int:
        """What a millisecond of waiting costs this request."""
        return delay_wei_per_ms(self.request, self.policy, self.now_ms)

    @cached_property
    def in_flight(self) -> Ints:
        """What each has in hand, by the snapshot."""
        return self.table.in_flight[self.block.rows]

    @cached_property
    def places(self) -> Ints:
        """What each may have in hand, at least 1."""
        return np.maximum(1, self.table.max_in_flight[self.block.rows])

    @cached_property
    def _busy_ms(self) -> Ints:
        tokens = min(self.request.max_output_tokens, MOST_TOKENS)
        complexity_milli = min(self.request.complexity_milli, MOST_COMPLEXITY_MILLI)
        by_pace = tokens * np.minimum(self.block.us_per_token, MOST_MS * 1000) // 1000
        word = np.minimum(self.table.avg_latency_ms[self.block.rows], MOST_MS) * complexity_milli // 1000
        return np.minimum(MOST_MS, np.where(self.block.us_per_token > 0, by_pace, word))

    @cached_property
    def _cold_ms(self) -> Ints:
        load_ms = min(MOST_MS, self.request.required_memory_mb * LOAD_MS_PER_MB)
        return np.where(self.block.is_warm, 0, load_ms)

    @cached_property
    def expected_ms(self) -> Ints:
        """From assignment to answer at each, as the snapshot has them."""
        return self.expected_ms_after(0)

    def expected_ms_after(self, placed: int | Ints) -> Ints:
        """The same when each was given so many before it in this cycle."""
        taken = np.minimum(self.in_flight + placed, self.places)
        expected: Ints = np.minimum(MOST_MS, self._busy_ms * (self.places + taken) // self.places + self._cold_ms)
        return expected
