"""The nodes of a cycle as columns, by the models that they offer: what filters and scorers look at all at once.

Rows are in ascending order of the nodes' keys, so that the first of equals is the one of the lowest key. The table is
kept from cycle to cycle and brought up to date by what changed: a heartbeat costs its own row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from headrace.core.cycle import NodeView, Offer
from headrace.core.routing.columns import Changes, Columns, Ints, Mask, column
from headrace.core.routing.cost import miss_milli
from headrace.core.types import Address, Hash32, MarketTerms

_FIELDS = (
    "free_memory_mb",
    "in_flight",
    "max_in_flight",
    "avg_latency_ms",
    "heartbeat_at_ms",
    "settled_count",
    "joined_at_s",
)
_DERIVED = {
    "miss_milli": lambda node: miss_milli(node.answered, node.missed),
    "stake_left_wei": lambda node: max(-1, node.stake_wei - node.exposure_wei),
}
_OFFERED = attrgetter("us_per_token", "is_warm", "price.per_prompt_kib_wei", "price.per_thousand_tokens_wei")


@dataclass(frozen=True, eq=False)
class Block:
    """The nodes that offer a model: their rows in the table, and what each asks. Prices are as columns hold them."""

    rows: Ints
    per_prompt_kib_wei: Ints
    per_thousand_tokens_wei: Ints
    us_per_token: Ints
    is_warm: Mask

    @cached_property
    def dearest(self) -> tuple[int, int]:
        """The highest prices a KiB and a thousand tokens."""
        return int(self.per_prompt_kib_wei.max()), int(self.per_thousand_tokens_wei.max())

    def at(self, chosen: Ints | Mask) -> Block:
        """Some of its nodes, maybe more than once."""
        return Block(
            self.rows[chosen],
            self.per_prompt_kib_wei[chosen],
            self.per_thousand_tokens_wei[chosen],
            self.us_per_token[chosen],
            self.is_warm[chosen],
        )

    @classmethod
    def pairs(cls, blocks: Sequence[Block]) -> Block:
        """All their nodes one below the other, for as many requests."""
        return cls(
            np.concatenate([block.rows for block in blocks])[:, None],
            np.concatenate([block.per_prompt_kib_wei for block in blocks])[:, None],
            np.concatenate([block.per_thousand_tokens_wei for block in blocks])[:, None],
            np.concatenate([block.us_per_token for block in blocks])[:, None],
            np.concatenate([block.is_warm for block in blocks])[:, None],
        )

    def set(self, index: int, offer: Offer) -> None:
        """Write down what a node asks now."""
        self.per_prompt_kib_wei[index] = column([offer.price.per_prompt_kib_wei])[0]
        self.per_thousand_tokens_wei[index] = column([offer.price.per_thousand_tokens_wei])[0]
        self.us_per_token[index] = column([offer.us_per_token])[0]
        self.is_warm[index] = offer.is_warm
        self.__dict__.pop("dearest", None)


class NodeTable:
    """The nodes of a cycle. `update` takes over those of the next."""

    def __init__(self, nodes: Sequence[NodeView] = ()) -> None:
        self._columns: Columns[NodeView] = Columns("node", _FIELDS, _DERIVED)
        self._blocks: dict[Hash32, Block] = {}
        self.update(nodes)

    def update(self, nodes: Sequence[NodeView]) -> None:
        """Take over the nodes of now, in ascending order of their keys."""
        before = self._columns.rows
        changes = self._columns.update(nodes)
        stale = self._renumber(before, nodes, changes)
        for number, was in zip(changes.changed, changes.before, strict=True):
            stale |= self._offered_anew(number, was, nodes[number])
        if stale:
            self._rebuild(stale)

    @property
    def nodes(self) -> Sequence[NodeView]:
        """The nodes, by row."""
        return self._columns.rows

    @property
    def row_of(self) -> dict[Address, int]:
        """The row of each node."""
        return self._columns.row_of

    def __getitem__(self, name: str) -> Ints:
        """A column by its name: a field of `NodeView`, or `miss_milli`, or `stake_left_wei`."""
        return self._columns.arrays[name]

    def is_graduated(self, terms: MarketTerms, now_ms: int) -> Mask:
        """Whose rewards the market no longer caps, as `fees.is_on_probation` has it."""
        is_known: Mask = self._columns.arrays["settled_count"] >= terms.probation_settled_count
        return is_known & (self._columns.arrays["joined_at_s"] <= now_ms // 1000 - terms.probation_duration_s)

    def offering(self, model_id: Hash32) -> Block | None:
        """The nodes that offer a model; None when there are none."""
        return self._blocks.get(model_id)

    def _renumber(
        self, before: Sequence[NodeView], nodes: Sequence[NodeView], changes: Changes[NodeView]
    ) -> set[Hash32]:
        """Give blocks the rows of now. Models of nodes that left must be rebuilt."""
        if changes.moved is None:
            return set()
        now_at = np.full(len(before), -1, dtype=np.int64)
        there = changes.moved >= 0
        now_at[changes.moved[there]] = np.flatnonzero(there)
        stale: set[Hash32] = set()
        for model_id, block in self._blocks.items():
            rows = now_at[block.rows]
            if (rows < 0).any():
                stale.add(model_id)
            else:
                block.rows[:] = rows
        return stale

    def _offered_anew(self, number: int, was: NodeView | None, node: NodeView) -> set[Hash32]:
        """Write down what a node asks now. The models that it did not offer before, or does no more, are rebuilt."""
        if was is not None and was.offers == node.offers:
            return set()
        models_before = [offer.model_id for offer in was.offers] if was else []
        models = [offer.model_id for offer in node.offers]
        if models != models_before or len(set(models)) < len(models):
            return {*models, *models_before}
        for offer in node.offers:
            block = self._blocks[offer.model_id]
            index = int(np.searchsorted(block.rows, number))
            if index < len(block.rows) and block.rows[index] == number:
                block.set(index, offer)
        return set()

    def _rebuild(self, models: set[Hash32]) -> None:
        for model_id in models:
            self._blocks.pop(model_id, None)
        found = [
            (offer.model_id, row, offer)
            for row, node in enumerate(self.nodes)
            for offer in node.offers
            if offer.model_id in models
        ]
        if not found:
            return
        ids, rows, offers = zip(*found, strict=True)
        codes = dict(zip(dict.fromkeys(ids), range(len(ids)), strict=False))
        code_of, row_of = np.array([codes[each] for each in ids], dtype=np.int64), np.array(rows, dtype=np.int64)
        paces, warm, kibs, thousands = zip(*map(_OFFERED, offers), strict=True)
        whole = Block(row_of, column(kibs), column(thousands), column(paces), np.array(warm, dtype=bool))
        order = np.lexsort((row_of, code_of))
        # A model that is listed twice is offered as it was listed first.
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (np.diff(code_of[order]) != 0) | (np.diff(row_of[order]) != 0)
        order = order[is_first]
        ends = np.cumsum(np.bincount(code_of[order], minlength=len(codes)))
        for model_id, chosen in zip(codes, np.split(order, ends[:-1]), strict=True):
            self._blocks[model_id] = whole.at(chosen)
