"""Where the served requests go: near the least total cost, each place of a node slower than the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.core.placement import NEVER, Choice, place
from headrace.core.routing.columns import Ints
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import Block
from headrace.core.scheduling.options import MOST_CELLS, Group, Options
from headrace.core.types import Hash32, Reason

_FEW = 32


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A request that has a place: its row, its group and number there, and what it costs at each of its nodes."""

    row: int
    group: Group
    index: int
    costs: Ints
    reason: Reason

    @property
    def model_id(self) -> Hash32:
        """Of its model."""
        return self.group.candidates.asked.requests[self.row].model_id


class Placed(NamedTuple):
    """Where a request goes, and its cheapest other node: -1 when there is none."""

    node: int
    cost_wei: int
    runner_up: int
    runner_up_cost_wei: int


def placed_near_optimum(
    options: Options, served: Sequence[Served], at: Sequence[int], free: Ints, reserved: Ints
) -> dict[int, Placed]:
    """Where each served request goes, by row.

    Args:
        options: that they were looked up in.
        served: in the order of their taking.
        at: a node for each that shows that all can be served.
        free: places of each node.
        reserved: of these, taken by quorums.
    """
    return _Placing(options, served, at, free, reserved).run() if served else {}


class _Placing:
    def __init__(
        self, options: Options, served: Sequence[Served], at: Sequence[int], free: Ints, reserved: Ints
    ) -> None:
        self._options = options
        self._served = served
        self._at = at
        self._reserved = reserved
        self._by_model: dict[Hash32, list[int]] = {}
        for number, each in enumerate(served):
            self._by_model.setdefault(each.model_id, []).append(number)
        self._room = np.minimum(free - reserved, self._wanted(len(free)))
        self._first = np.concatenate(([0], np.cumsum(self._room)))  # the number of each node's first place

    def run(self) -> dict[int, Placed]:
        starts = self._starts()
        choices: list[Choice] = [Choice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))] * len(starts)
        for model_id, numbers in self._by_model.items():
            for number, choice in zip(numbers, self._choices(model_id, numbers, starts), strict=True):
                choices[number] = choice
        found = place(choices, starts)
        nodes = (np.searchsorted(self._first, np.array(found, dtype=np.int64), side="right") - 1).tolist()
        return {
            each.row: _placed(each, node, choice, number)
            for each, node, choice, number in zip(self._served, nodes, choices, found, strict=True)
        }

    def _block(self, model_id: Hash32) -> Block:
        block = self._options.free(model_id)
        assert block is not None  # requests of the model are served
        return block

    def _wanted(self, nodes: int) -> Ints:
        """How many places of each node are looked at: those that the matching used and one more, and twice what the
        node would have if its models' requests were spread evenly."""
        wanted: Ints = 1 + np.bincount(self._at, minlength=nodes)
        for model_id, numbers in self._by_model.items():
            rows = self._block(model_id).rows
            wanted[rows] = np.maximum(wanted[rows], 1 + 2 * len(numbers) // len(rows))
        return wanted

    def _starts(self) -> list[int]:
        filled: dict[int, int] = {}
        starts = []
        for node in self._at:
            starts.append(int(self._first[node]) + filled.get(node, 0))
            filled[node] = filled.get(node, 0) + 1
        return starts

    def _choices(self, model_id: Hash32, numbers: Sequence[int], starts: Sequence[int]) -> Iterator[Choice]:
        block = self._block(model_id)
        counts = self._room[block.rows]
        of = np.repeat(np.arange(len(block.rows)), counts)
        below = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = block.rows[of]
        places, wide = self._first[rows] + below, block.at(of)
        # So many are served at these nodes that one of its own cheapest is free, but for what other models take.
        most = max(_FEW, 2 * len(numbers))
        size = max(1, MOST_CELLS // max(1, len(of)))
        for start in range(0, len(numbers), size):
            own = numbers[start : start + size]
            candidates = self._options.candidates([self._served[number].row for number in own], wide)
            is_kept = np.array([self._served[number].costs for number in own])[:, of] < NEVER
            costs: Ints = np.where(is_kept, costs_wei(candidates, below + self._reserved[rows]), NEVER)
            is_chosen = costs < NEVER
            if len(of) > 2 * most:
                is_chosen &= costs <= np.partition(costs, most, axis=1)[:, most : most + 1]
            is_chosen[np.arange(len(own)), np.searchsorted(places, [starts[number] for number in own])] = True
            for own_costs, chosen in zip(costs, is_chosen, strict=True):
                at = np.flatnonzero(chosen)
                yield Choice(places[at], own_costs[at])


def _placed(served: Served, node: int, choice: Choice, number: int) -> Placed:
    cost_wei = int(choice.costs[int(np.searchsorted(choice.places, number))])
    rows = served.group.candidates.block.rows
    others: Ints = np.where(rows == node, NEVER, served.costs)
    best = int(others.argmin())
    if others[best] >= NEVER:
        return Placed(node, cost_wei, -1, 0)
    return Placed(node, cost_wei, int(rows[best]), int(others[best]))
