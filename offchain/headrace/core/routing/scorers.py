"""What a route costs, term by term, in wei, by request and node. `core/routing/cost.py` has the formulas.

A route's cost is the sum of all terms: each is in wei, so that none needs a weight.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headrace.core.routing.candidates import Candidates
from headrace.core.routing.columns import Ints
from headrace.core.routing.cost import MOST_MS, MOST_REWARD_WEI


class Scorer(Protocol):
    """A term of the cost."""

    def costs_wei(self, candidates: Candidates, placed: int | Ints) -> Ints:
        """The term at each node that was given `placed` requests before this one in the cycle. At most 2^60."""
        ...


class Reward:
    """What the node is paid."""

    def costs_wei(self, candidates: Candidates, placed: int | Ints) -> Ints:
        """See `Scorer`."""
        return candidates.capped_rewards_wei


class Delay:
    """The time to the answer, at the price of the request's own time."""

    def costs_wei(self, candidates: Candidates, placed: int | Ints) -> Ints:
        """See `Scorer`."""
        return candidates.expected_ms_after(placed) * candidates.delay_wei_per_ms


class Miss:
    """What a miss would lose, by how often the node misses. It weighs more the larger the reward."""

    def costs_wei(self, candidates: Candidates, placed: int | Ints) -> Ints:
        """See `Scorer`."""
        lease_wei = min(candidates.policy.miss_delay_ms, MOST_MS) * candidates.delay_wei_per_ms
        at_stake = np.minimum(MOST_REWARD_WEI, candidates.capped_rewards_wei + lease_wei)
        misses: Ints = at_stake // 1000 * candidates.of_node("miss_milli")
        return misses


SCORERS: tuple[Scorer, ...] = (Reward(), Delay(), Miss())


def costs_wei(candidates: Candidates, placed: int | Ints = 0) -> Ints:
    """The cost of each route, without the gas share."""
    total = SCORERS[0].costs_wei(candidates, placed)
    for scorer in SCORERS[1:]:
        total = total + scorer.costs_wei(candidates, placed)
    return total
