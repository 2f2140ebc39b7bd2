"""Where requests could go, looked up for many at once: nothing here depends on what becomes of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.cycle import CycleInputs
from headrace.core.placement import NEVER
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.candidates import Candidates
from headrace.core.routing.columns import Ints
from headrace.core.routing.filters import busy_or_why, filtered, would_be_busy
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import Block, NodeTable
from headrace.core.scheduling.rules import Rules
from headrace.core.types import ZERO_ADDRESS, Address, Hash32, Reason

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

    def __init__(
        self, inputs: CycleInputs, asked: RequestTable, nodes: NodeTable, rules: Rules, witnesses: dict[Hash32, Address]
    ) -> None:
        """
        Args:
            inputs: of the cycle.
            asked: their requests.
            nodes: their nodes.
            rules: over them.
            witnesses: of requests that waited before, nodes that only their work kept from them. As long as that is so,
                the reason is known without looking at all others. It is added to, and what is in it changes no outcome.
        """
        self._inputs = inputs
        self._asked = asked
        self._nodes = nodes
        self._rules = rules
        self._witnesses = witnesses
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
        nowhere: dict[Hash32, list[int]] = {}
        for model_id, own in by_model.items():
            block, free = self._nodes.offering(model_id), self.free(model_id)
            if block is None:
                self._found.update(dict.fromkeys(own, Reason.NO_NODE_FOR_MODEL))
            else:
                nowhere[model_id] = own if free is None else self._looked_at(own, free)
        self._recall(nowhere)
        for model_id, own in nowhere.items():
            self._explain(model_id, [row for row in own if row not in self._found])

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

    def _recall(self, nowhere: Mapping[Hash32, Sequence[int]]) -> None:
        """Find that some of those that can go nowhere wait for the same nodes as before."""
        found, blocks = [], []
        for model_id, rows in nowhere.items():
            asked, at = self._witnesses_of(rows)
            block = self._nodes.offering(model_id)
            if block is None or not asked:
                continue
            index = np.minimum(np.searchsorted(block.rows, at), len(block.rows) - 1)
            offers_it = block.rows[index] == at
            found += [row for row, is_there in zip(asked, offers_it.tolist(), strict=True) if is_there]
            blocks.append(block.at(index[offers_it]))
        if found:
            still = would_be_busy(self.candidates(found, Block.pairs(blocks)))
            for row in np.array(found)[still].tolist():
                self._found[row] = Reason.NODES_BUSY

    def _witnesses_of(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those of the rows that have a witness which is there, and the witnesses' rows."""
        asked, at = [], []
        for row in rows:
            request = self._inputs.requests[row]
            node = self._witnesses.get(request.request_id)
            where = self._nodes.row_of.get(node, -1) if node else -1
            # The two filters that look at one request at a time are not asked.
            if where >= 0 and request.verifier == ZERO_ADDRESS and not request.excluded_nodes:
                asked.append(row)
                at.append(where)
        return asked, at

    def _explain(self, model_id: Hash32, rows: Sequence[int]) -> None:
        """Find why requests can go nowhere."""
        block = self._nodes.offering(model_id)
        assert block is not None  # those of models that nobody offers are explained
        for some in _parts(rows, len(block.rows)):
            witnesses, reasons = busy_or_why(self.candidates(some, block))
            for row, index, reason in zip(some, witnesses, reasons, strict=True):
                self._found[row] = reason
                if index >= 0:
                    node = self._inputs.nodes[int(block.rows[index])].node
                    self._witnesses[self._inputs.requests[row].request_id] = node

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
