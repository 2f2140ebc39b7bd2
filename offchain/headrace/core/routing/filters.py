"""Who cannot have a request. Each filter keeps the nodes that pass; its reason is given when it took away the last.

`FILTERS` is in the order in which reasons count: what a requester can do something about stands before what passes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headrace.core.routing.candidates import Candidates
from headrace.core.routing.columns import Mask, capped
from headrace.core.types import ZERO_ADDRESS, Reason


class Filter(Protocol):
    """Tells which nodes may have a request."""

    @property
    def reason(self) -> Reason:
        """Why a request is skipped when this filter leaves nobody."""
        ...

    def keeps(self, candidates: Candidates) -> Mask | None:
        """True for each node that passes, by request and node; None when all do. One row may stand for all requests."""
        ...


class CanProve:
    """The node can prove its answers to the request's verifier."""

    reason = Reason.NO_PROOF

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        requests, nodes = candidates.requests, candidates.nodes.nodes
        if all(request.verifier == ZERO_ADDRESS for request in requests):
            return None
        proves = [nodes[row].verifiers for row in candidates.block.rows.tolist()]
        return np.array(
            [[request.verifier in (ZERO_ADDRESS, *each) for each in proves] for request in requests], dtype=bool
        )


class Heard:
    """The node's heartbeat is recent enough."""

    reason = Reason.NODES_SILENT

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        oldest_ms = candidates.now_ms - candidates.policy.heartbeat_timeout_ms
        is_heard: Mask = candidates.of_node("heartbeat_at_ms") >= oldest_ms
        return is_heard


class NotTried:
    """The node was not asked before."""

    reason = Reason.NODES_EXCLUDED

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        row_of, requests = candidates.nodes.row_of, candidates.requests
        if not any(request.excluded_nodes for request in requests):
            return None
        keeps: Mask = np.ones((len(requests), len(candidates.block.rows)), dtype=bool)
        for index, request in enumerate(requests):
            tried = [row_of[node] for node in request.excluded_nodes if node in row_of]
            keeps[index] = ~np.isin(candidates.block.rows, tried)
        return keeps


class Affordable:
    """The request pays what the node asks."""

    reason = Reason.PRICE_ABOVE_MAX

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        is_paid: Mask = candidates.rewards_wei <= candidates.of_request("node_max_reward_wei")
        return is_paid


class WithinProbation:
    """The market does not cap the node's reward below what it asks."""

    reason = Reason.PROBATION

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        if candidates.is_graduated.all():
            return None
        is_within: Mask = candidates.rewards_wei <= capped(candidates.terms.probation_max_reward_wei)
        return is_within | candidates.is_graduated


class HasMemory:
    """The node has the memory for prompt and answer."""

    reason = Reason.NODE_MEMORY

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        has_it: Mask = candidates.of_node("free_memory_mb") >= candidates.of_request("required_memory_mb")
        return has_it


class InTime:
    """The node is expected to answer before the deadline."""

    reason = Reason.NODES_TOO_SLOW

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        is_in_time: Mask = candidates.expected_ms <= candidates.left_ms
        return is_in_time


class StakeCovers:
    """The node's stake is at least what it may earn with all that it has in hand."""

    reason = Reason.STAKE_SHORT

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        is_covered: Mask = candidates.of_node("stake_left_wei") >= candidates.rewards_wei
        return is_covered


class HasPlace:
    """The node works on less than its limit."""

    reason = Reason.NODES_BUSY

    def keeps(self, candidates: Candidates) -> Mask | None:
        """See `Filter`."""
        has_place: Mask = candidates.of_node("in_flight") < candidates.of_node("max_in_flight")
        return has_place


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


def filtered(candidates: Candidates) -> tuple[Mask, list[Reason]]:
    """Which nodes each request may have, and why those that may have none were left with none."""
    keeps, _, reasons = _passed(candidates)
    return keeps, reasons


def busy_or_why(candidates: Candidates) -> tuple[list[int], list[Reason]]:
    """For requests that may have none of the nodes: one that only its work keeps from it, or -1; and the reason."""
    _, nearly, reasons = _passed(candidates)
    witnesses = np.where(nearly.any(axis=1), nearly.argmax(axis=1), -1)
    return witnesses.tolist(), reasons


def would_be_busy(candidates: Candidates) -> Mask:
    """Whether each request may have its node, but for the node's work.

    The block has one node for each request: `rows` and all else has a row for each, of one column.
    """
    _, nearly, _ = _passed(candidates)
    return nearly[:, 0]


def _passed(candidates: Candidates) -> tuple[Mask, Mask, list[Reason]]:
    """What passes all filters, what passes all but the last, and why who has none of the former has none."""
    shape = (len(candidates.rows), candidates.block.rows.shape[-1])
    keeps: Mask = np.ones(shape, dtype=bool)
    nearly = keeps
    reasons = [Reason.NO_NODE_FOR_MODEL] * len(candidates.rows)
    is_left: Mask = keeps.any(axis=1)
    for each in FILTERS:
        if each is FILTERS[-1]:
            nearly = keeps.copy()
        passes = each.keeps(candidates)
        if passes is None:
            continue
        keeps &= passes
        still_left = keeps.any(axis=1)
        for index in np.flatnonzero(is_left & ~still_left).tolist():
            reasons[index] = each.reason
        is_left = still_left
        if not is_left.any():
            nearly = nearly if each is FILTERS[-1] else keeps
            break
    return keeps, nearly, reasons
