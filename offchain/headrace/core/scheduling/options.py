"""Where requests could go, looked up for many at once: nothing here depends on what becomes of any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.cycle import CycleInputs
from headrace.core.placement import NEVER
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.candidates import Candidates
from headrace.core.routing.columns import Ints
from headrace.core.routing.filters import filtered
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import Block, NodeTable
from headrace.core.scheduling.rules import Rules
from headrace.core.types import Hash32, Reason

MOST_CELLS = 2**18
"""Requests times nodes that are looked at together: what fits into a processor's cache."""


@dataclass(frozen=True, eq=False)
class Group:
    """Requests of one model over the nodes that offer it and have a place.

    `costs` has a row for each request, `NEVER` where it may not be; `cheapest` the index of the least.
    """

    candidates: Candidates
    costs: Ints
    cheapest: list[int]


class Options:
    """What could be had by the requests that were looked up."""

    def __init__(self, inputs: CycleInputs, asked: RequestTable, nodes: NodeTable, rules: Rules) -> None:
        self._inputs = inputs
        self._asked = asked
        self._nodes = nodes
        self._rules = rules
        self._graduated = nodes.is_graduated(inputs.terms, inputs.now_ms)
        self._free: dict[Hash32, Block | None] = {}
        self._found: dict[int, tuple[Group, int] | Reason | None] = {}

    def has(self, row: int) -> bool:
        """Whether a request was looked up."""
        return row in self._found

    def of(self, row: int) -> tuple[Group, int] | Reason | None:
        """A request's group and its index in it; the reason when it can go nowhere; None for a quorum, which is looked
        at in its turn."""
        return self._found[row]

    def look_up(self, rows: Sequence[int]) -> None:
        """Look up some requests."""
        by_model: dict[Hash32, list[int]] = {}
        for row in rows:
            if row in self._found:
                continue
            request = self._inputs.requests[row]
            refusal = self._rules.refusal_of(request)
            if refusal is not Reason.NONE:
                self._found[row] = refusal
            elif request.k:
                self._found[row] = None
            else:
                by_model.setdefault(request.model_id, []).append(row)
        for model_id, own in by_model.items():
            self._look_up_model(model_id, own)

    def candidates(self, rows: Sequence[int], block: Block) -> Candidates:
        """Requests of one model over some nodes."""
        inputs = self._inputs
        return Candidates(
            self._asked,
            np.array(rows, dtype=np.int64),
            self._nodes,
            block,
            inputs.policy,
            inputs.terms,
            inputs.now_ms,
            self._graduated,
        )

    def free(self, model_id: Hash32) -> Block | None:
        """The nodes that offer a model and have a place; None when there are none."""
        if model_id not in self._free:
            block, chosen = self._nodes.offering(model_id), None
            if block is not None:
                has_place = self._nodes["in_flight"][block.rows] < self._nodes["max_in_flight"][block.rows]
                chosen = block.at(has_place) if has_place.any() else None
            self._free[model_id] = chosen
        return self._free[model_id]

    def _look_up_model(self, model_id: Hash32, rows: Sequence[int]) -> None:
        block, free = self._nodes.offering(model_id), self.free(model_id)
        if block is None:
            self._found.update(dict.fromkeys(rows, Reason.NO_NODE_FOR_MODEL))
            return
        nowhere = list(rows) if free is None else self._looked_at(rows, free)
        for some in _parts(nowhere, len(block.rows)):
            _, reasons = filtered(self.candidates(some, block))
            self._found.update(zip(some, reasons, strict=True))

    def _looked_at(self, rows: Sequence[int], free: Block) -> list[int]:
        """Group requests over these nodes. Returns those that may have none of them."""
        nowhere: list[int] = []
        for some in _parts(rows, len(free.rows)):
            candidates = self.candidates(some, free)
            keeps, _ = filtered(candidates)
            costs: Ints = np.where(keeps, costs_wei(candidates), NEVER)
            group = Group(candidates, costs, costs.argmin(axis=1).tolist())
            for index, (row, can_go) in enumerate(zip(some, keeps.any(axis=1).tolist(), strict=True)):
                if can_go:
                    self._found[row] = group, index
                else:
                    nowhere.append(row)
        return nowhere


def _parts(rows: Sequence[int], nodes: int) -> list[Sequence[int]]:
    size = max(1, MOST_CELLS // max(1, nodes))
    return [rows[start : start + size] for start in range(0, len(rows), size)]
