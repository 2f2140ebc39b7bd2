"""The nodes of a cycle as columns, by the models that they offer: what filters and scorers look at all at once.

A column is an array over the nodes in their ascending order, so that the first of equals is the one of the lowest key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headrace.core.cycle import NodeView, WaitingRequest
from headrace.core.fees import KIB, THOUSAND_TOKENS, is_on_probation
from headrace.core.routing.cost import MOST_REWARD_WEI, miss_milli
from headrace.core.types import Address, Hash32, MarketTerms

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_MOST = 2**62


def _column(values: Sequence[int]) -> Ints:
    return np.array([min(value, _MOST) for value in values], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Block:
    """The nodes that offer a model: their rows in the table, and what each asks."""

    rows: Ints
    per_prompt_kib_wei: Sequence[int]
    per_thousand_tokens_wei: Sequence[int]
    us_per_token: Ints
    is_warm: Mask

    def rewards_wei(self, request: WaitingRequest) -> Ints:
        """What each asks for a request, exact up to `MOST_REWARD_WEI` and anything above it beyond."""
        kib = -(-request.prompt_bytes // KIB)
        thousands = -(-request.max_output_tokens // THOUSAND_TOKENS)
        if kib * self._dearest_kib_wei + thousands * self._dearest_thousand_wei < _MOST:
            kibs, tokens = self._price_columns
            rewards: Ints = kib * kibs + thousands * tokens
            return rewards
        pairs = zip(self.per_prompt_kib_wei, self.per_thousand_tokens_wei, strict=True)
        return _column([kib * of_kib + thousands * of_tokens for of_kib, of_tokens in pairs])

    @cached_property
    def _dearest_kib_wei(self) -> int:
        return max(self.per_prompt_kib_wei)

    @cached_property
    def _dearest_thousand_wei(self) -> int:
        return max(self.per_thousand_tokens_wei)

    @cached_property
    def _price_columns(self) -> tuple[Ints, Ints]:
        return _column(self.per_prompt_kib_wei), _column(self.per_thousand_tokens_wei)


class NodeTable:
    """The nodes of a cycle.

    Args:
        nodes: in ascending order of their keys.
        terms: the market's numbers.
        now_ms: of the cycle.
    """

    def __init__(self, nodes: Sequence[NodeView], terms: MarketTerms, now_ms: int) -> None:
        self.nodes = nodes
        self.row_of: dict[Address, int] = {node.node: row for row, node in enumerate(nodes)}
        self.free_memory_mb = _column([node.free_memory_mb for node in nodes])
        self.in_flight = _column([node.in_flight for node in nodes])
        self.max_in_flight = _column([node.max_in_flight for node in nodes])
        self.avg_latency_ms = _column([node.avg_latency_ms for node in nodes])
        self.heartbeat_at_ms = _column([node.heartbeat_at_ms for node in nodes])
        self.miss_milli = _column([miss_milli(node.answered, node.missed) for node in nodes])
        self.stake_left_wei = _column([max(-1, node.stake_wei - node.exposure_wei) for node in nodes])
        now_s = now_ms // 1000
        self.is_graduated: Mask = np.array(
            [not is_on_probation(terms, node.settled_count, node.joined_at_s, now_s) for node in nodes], dtype=bool
        )
        self._blocks = _blocks_of(nodes)

    def offering(self, model_id: Hash32) -> Block | None:
        """The nodes that offer a model; None when there are none."""
        return self._blocks.get(model_id)


def _blocks_of(nodes: Sequence[NodeView]) -> dict[Hash32, Block]:
    offers: dict[Hash32, list[tuple[int, int, int, int, bool]]] = {}
    for row, node in enumerate(nodes):
        for offer in node.offers:
            price = offer.price
            entry = (row, price.per_prompt_kib_wei, price.per_thousand_tokens_wei, offer.us_per_token, offer.is_warm)
            offers.setdefault(offer.model_id, []).append(entry)
    blocks = {}
    for model_id, entries in offers.items():
        rows, kibs, thousands, paces, warm = zip(*entries, strict=True)
        blocks[model_id] = Block(_column(rows), kibs, thousands, _column(paces), np.array(warm, dtype=bool))
    return blocks


def above_most(wei: int) -> int:
    """An amount as it can be compared with a column of rewards: all above what columns hold is alike."""
    return min(wei, _MOST)


__all__ = ["MOST_REWARD_WEI", "Block", "Ints", "Mask", "NodeTable", "above_most"]
