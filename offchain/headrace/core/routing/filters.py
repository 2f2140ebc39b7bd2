"""Who cannot have a request. Each filter keeps the nodes that pass; its reason is given when it took away the last.

`FILTERS` is in the order in which reasons count: what a requester can do something about stands before what passes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headrace.core.routing.candidates import Candidates
from headrace.core.routing.table import Mask, above_most
from headrace.core.types import ZERO_ADDRESS, MarketTerms, Reason


class Filter(Protocol):
    """Tells which nodes may have a request."""

    @property
    def reason(self) -> Reason:
        """Why a request is skipped when this filter leaves nobody."""
        ...

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """True for each node that passes; None when all do."""
        ...


class CanProve:
    """The node can prove its answers to the request's verifier."""

    reason = Reason.NO_PROOF

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        verifier, nodes = candidates.request.verifier, candidates.table.nodes
        if verifier == ZERO_ADDRESS:
            return None
        return np.array([verifier in nodes[row].verifiers for row in candidates.block.rows.tolist()], dtype=bool)


class Heard:
    """The node's heartbeat is recent enough."""

    reason = Reason.NODES_SILENT

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        oldest_ms = candidates.now_ms - candidates.policy.heartbeat_timeout_ms
        return candidates.table.heartbeat_at_ms[candidates.block.rows] >= oldest_ms


class NotTried:
    """The node was not asked before."""

    reason = Reason.NODES_EXCLUDED

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        row_of = candidates.table.row_of
        tried = [row_of[node] for node in candidates.request.excluded_nodes if node in row_of]
        return ~np.isin(candidates.block.rows, tried) if tried else None


class Affordable:
    """The request pays what the node asks."""

    reason = Reason.PRICE_ABOVE_MAX

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        return candidates.rewards_wei <= above_most(candidates.request.max_reward_wei)


class WithinProbation:
    """The market does not cap the node's reward below what it asks."""

    reason = Reason.PROBATION

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        is_within = candidates.rewards_wei <= above_most(terms.probation_max_reward_wei)
        return is_within | candidates.table.is_graduated[candidates.block.rows]


class HasMemory:
    """The node has the memory for prompt and answer."""

    reason = Reason.NODE_MEMORY

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        needed_mb = above_most(candidates.request.required_memory_mb)
        return candidates.table.free_memory_mb[candidates.block.rows] >= needed_mb


class InTime:
    """The node is expected to answer before the deadline."""

    reason = Reason.NODES_TOO_SLOW

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        left_ms = candidates.request.deadline_s * 1000 - candidates.now_ms
        return candidates.expected_ms <= left_ms


class StakeCovers:
    """The node's stake is at least what it may earn with all that it has in hand."""

    reason = Reason.STAKE_SHORT

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        return candidates.table.stake_left_wei[candidates.block.rows] >= candidates.rewards_wei


class HasPlace:
    """The node works on less than its limit."""

    reason = Reason.NODES_BUSY

    def keeps(self, candidates: Candidates, terms: MarketTerms) -> Mask | None:
        """See `Filter`."""
        rows = candidates.block.rows
        return candidates.table.in_flight[rows] < candidates.table.max_in_flight[rows]


FILTERS: tuple[Filter, ...] = (
    CanProve(),
    Heard(),
    NotTried(),
    Affordable(),
    WithinProbation(),
    HasMemory(),
    InTime(),
    StakeCovers(),
    HasPlace(),
)
