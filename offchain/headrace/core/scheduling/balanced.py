"""Policy `balanced`: order by lanes, fairness and score says who is served; cost says where.

1. What is past its deadline leaves. The rest is looked at in the order of `core.lanes`, as many as each lane's working
   set holds. What no node could take, however free, is looked at but takes no place in the set: a thousand requests
   that pay nothing would keep all others out.
2. Who: a request is served if places can be found for it and all before it (`core.placement.Matching`).
3. Where: the served set is placed near its least total cost (`core.placement.place`), nodes filled up to their free
   places, each place of a node slower than the one before.

A share of the requests that can wait goes to nodes on probation where there are any, so that a new node can earn its
name. Which ones is in their ids, so that nobody chooses.

A quorum takes the cheapest free places of k different owners in its turn, as in policy `reference`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.core.cycle import CycleInputs, CyclePlan, NodeView, PlannedDecision, WaitingRequest
from headrace.core.fairness import Accounts
from headrace.core.lanes import Entry, LaneOrder, SharedLanes
from headrace.core.placement import Choice, Matching, place
from headrace.core.priority import Weights, capped_fee_wei, scores_e9
from headrace.core.routing.candidates import Candidates
from headrace.core.routing.cost import cost_wei, expected_ms
from headrace.core.routing.filters import FILTERS
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import Block, Ints, Mask, NodeTable
from headrace.core.scheduling.rules import PASSING, Route, Rules, offer_of, reward_of
from headrace.core.types import ZERO_ADDRESS, Address, Decision, DecisionKind, Hash32, Lane, Reason

COMPETING = PASSING | {Reason.NODES_TAKEN, Reason.LANE_FULL}
"""Skipped for no reason of its own: it waits for its turn."""
_EXPIRED_SCORE_E9 = -(10**9)
_FEW = 64


def plan_balanced(inputs: CycleInputs) -> CyclePlan:
    """Decide on every waiting request by policy `balanced`."""
    return _Cycle(inputs).run()


@dataclass(frozen=True, eq=False)
class _Served:
    """A request that has a place, and the nodes that may have it."""

    request: WaitingRequest
    candidates: Candidates
    keeps: Mask
    preferred: Ints  # rows of the table, cheapest first
    reason: Reason


@dataclass(frozen=True, eq=False)
class _Places:
    """A model's nodes once for each place that may be filled, with the places' numbers and what lies below each."""

    block: Block
    of: Ints  # rows of the model's own block
    numbers: Ints
    placed: Ints
    most: int  # of its own cheapest that a request needs to look at


class _Cycle:
    def __init__(self, inputs: CycleInputs) -> None:
        self._inputs = inputs
        self._rules = Rules(inputs)
        self._table = NodeTable(inputs.nodes, inputs.terms, inputs.now_ms)
        free = np.maximum(0, self._table.max_in_flight - self._table.in_flight)
        self._free: Ints = free
        self._matching = Matching(free)
        self._accounts = Accounts(inputs.accounts, inputs.floor_work)
        self._reserved: Ints = np.zeros(len(inputs.nodes), dtype=np.int64)  # for quorums
        scores = _scores_of(inputs, self._lane_of).tolist()
        self._score_by_id: dict[Hash32, int] = {
            request.request_id: score for request, score in zip(inputs.requests, scores, strict=True)
        }
        self._served: list[_Served] = []
        # What becomes of each request, in the order in which they were looked at.
        self._outcomes: list[tuple[WaitingRequest, Reason | _Served | list[PlannedDecision]]] = []

    def run(self) -> CyclePlan:
        """See the module."""
        late = [request for request in self._inputs.requests if self._is_too_late(request)]
        lanes = self._look_at_all()
        nodes = self._placed()
        decisions = [self._too_late(request) for request in late]
        for request, outcome in self._outcomes:
            if isinstance(outcome, Reason):
                decisions.append(self._skipped(request, outcome))
            elif isinstance(outcome, _Served):
                decisions.append(nodes[request.request_id])
            else:
                decisions.extend(outcome)
        backlogged = {request.requester for request, outcome in self._outcomes if _competes(outcome)}
        accounts, floor_work = self._accounts.closed(backlogged)
        return CyclePlan(tuple(decisions), self._inputs.lane_streak, lanes.lag, floor_work, accounts)

    # Who

    def _look_at_all(self) -> SharedLanes:
        inputs = self._inputs
        waiting: dict[Lane, list[Entry]] = {lane: [] for lane in Lane}
        for row, request in enumerate(inputs.requests):
            if not self._is_too_late(request):
                waiting[self._lane_of(request)].append(self._entry(row, request))
        orders = {lane: LaneOrder(waiting[lane], self._accounts) for lane in Lane}
        lanes = SharedLanes(orders[Lane.REALTIME], orders[Lane.BULK], inputs.lane_lag)
        room = {Lane.REALTIME: inputs.policy.realtime_capacity, Lane.BULK: inputs.policy.bulk_capacity}
        while lanes:
            lane = lanes.next_lane()
            if not room[lane]:
                for entry in lanes.close(lane):
                    self._outcomes.append((inputs.requests[entry.row], Reason.LANE_FULL))
                continue
            entry = lanes.pop(lane)
            request = inputs.requests[entry.row]
            outcome = self._look_at(request)
            self._outcomes.append((request, outcome))
            room[lane] -= not isinstance(outcome, Reason) or _competes(outcome)
            if not isinstance(outcome, Reason):
                lanes.count(lane, request.work)
                self._accounts.charge(request.requester, request.work)
        return lanes

    def _entry(self, row: int, request: WaitingRequest) -> Entry:
        age_ms = self._inputs.now_ms - request.included_at_s * 1000
        is_overdue = age_ms > self._inputs.policy.max_wait_ms(self._lane_of(request))
        score = self._score_of(request)
        return Entry(request.request_id, request.requester, request.included_at_s, score, request.work, is_overdue, row)

    def _lane_of(self, request: WaitingRequest) -> Lane:
        return Lane.REALTIME if self._rules.is_realtime(request) else Lane.BULK

    def _is_too_late(self, request: WaitingRequest) -> bool:
        return request.deadline_s * 1000 <= self._inputs.now_ms

    def _look_at(self, request: WaitingRequest) -> Reason | _Served | list[PlannedDecision]:
        refusal = self._rules.refusal_of(request)
        if refusal is not Reason.NONE:
            return refusal
        if request.k:
            return self._quorum(request)
        block = self._table.offering(request.model_id)
        if block is None:
            return Reason.NO_NODE_FOR_MODEL
        candidates = Candidates(request, self._table, block, self._inputs.policy, self._inputs.now_ms)
        keeps: Mask = np.ones(len(block.rows), dtype=bool)
        for each in FILTERS:
            passes = each.keeps(candidates, self._inputs.terms)
            if passes is not None:
                keeps &= passes
                if not keeps.any():
                    return each.reason
        return self._taken(candidates, keeps)

    def _taken(self, candidates: Candidates, keeps: Mask) -> Reason | _Served:
        """Served on one of these nodes, if it can be beside all that were served before it."""
        for kept, reason in ((self._explored(candidates, keeps), Reason.EXPLORATION), (keeps, Reason.LOWEST_COST)):
            if kept is None:
                continue
            rows = candidates.block.rows[kept]
            preferred = rows[np.argsort(costs_wei(candidates)[kept], kind="stable")]
            if self._matching.take(preferred):
                served = _Served(candidates.request, candidates, kept, preferred, reason)
                self._served.append(served)
                return served
        return Reason.NODES_TAKEN

    def _explored(self, candidates: Candidates, keeps: Mask) -> Mask | None:
        """The nodes on probation that may have it, if it is one of those that they are given and time allows."""
        request = candidates.request
        if int(request.request_id[-6:], 16) % 1000 >= self._inputs.policy.exploration_milli:
            return None
        left_ms = request.deadline_s * 1000 - self._inputs.now_ms
        is_new = ~self._table.is_graduated[candidates.block.rows]
        kept: Mask = keeps & is_new & (2 * candidates.expected_ms <= left_ms)
        return kept if kept.any() else None

    # Quorums

    def _quorum(self, request: WaitingRequest) -> Reason | list[PlannedDecision]:
        kept = self._rules.kept_routes(request)
        routes = self._routes(request, only_free=True)
        spares = self._rules.spares(request, kept, routes)
        if spares is None:
            return self._rules.why_no_quorum(request, kept, lambda: self._routes(request, only_free=False))
        others = [route for route in routes if all(route is not spare for spare in spares)]
        reward_wei = max(route.reward_wei for route in (*kept, *spares))
        gas_wei = self._rules.gas_charge_wei(request)
        decisions = []
        for reason, chosen in ((Reason.QUORUM_KEPT, kept), (Reason.LOWEST_COST, spares)):
            for route in chosen:
                alike = replace(route, reward_wei=reward_wei)
                decisions.append(self._assigned(request, reason, alike, gas_wei, others[:1]))
        for route in spares:
            row = self._table.row_of[route.node.node]
            self._matching.reserve(row)
            self._reserved[row] += 1
        return decisions

    def _routes(self, request: WaitingRequest, *, only_free: bool) -> list[Route]:
        """Over all nodes that may have it, cheapest first; of equals the first."""
        excluding = [excludes for excludes, _ in self._rules.filters()]
        routes = []
        for row, node in enumerate(self._inputs.nodes):
            if only_free and self._matching.left[row] <= 0:
                continue
            if any(excludes(request, node) for excludes in excluding):
                continue
            routes.append(self._route(request, node, int(self._free[row] - self._matching.left[row])))
        routes.sort(key=lambda route: route.cost)
        return routes

    def _route(self, request: WaitingRequest, node: NodeView, placed: int) -> Route:
        offer = offer_of(request, node)
        assert offer is not None  # a filter sees to it
        ms, reward_wei = expected_ms(request, node, offer, placed), reward_of(request, node)
        cost = cost_wei(request, node, reward_wei, ms, self._inputs.policy, self._inputs.now_ms)
        return Route(node, cost, reward_wei)

    # Where

    def _placed(self) -> dict[Hash32, PlannedDecision]:
        """The decision on each request that is served by one node."""
        if not self._served:
            return {}
        counts = Counter(served.request.model_id for served in self._served)
        room = self._room(counts)
        first = np.concatenate(([0], np.cumsum(room)))  # the number of each node's first place
        of_model = {model_id: self._places(model_id, room, first, counts[model_id]) for model_id in counts}
        choices, starts = [], []
        filled = np.zeros(len(self._free), dtype=np.int64)
        for served, row in zip(self._served, self._matching.nodes, strict=True):
            choices.append(self._choice(served, of_model[served.request.model_id], int(first[row] + filled[row])))
            starts.append(int(first[row] + filled[row]))
            filled[row] += 1
        found = place(choices, starts)
        rows = np.searchsorted(first, np.array(found, dtype=np.int64), side="right") - 1
        return {
            served.request.request_id: self._served_at(served, int(row), choice, number)
            for served, row, choice, number in zip(self._served, rows, choices, found, strict=True)
        }

    def _room(self, counts: Mapping[Hash32, int]) -> Ints:
        """How many places of each node are looked at: those that the matching used and one more, and twice what the
        node would have if its models' requests were spread evenly."""
        room = 1 + np.bincount(self._matching.nodes, minlength=len(self._free))
        for model_id, count in counts.items():
            block = self._table.offering(model_id)
            assert block is not None  # it was found when its requests were looked at
            room[block.rows] = np.maximum(room[block.rows], 1 + 2 * count // len(block.rows))
        return np.minimum(self._free - self._reserved, room)

    def _places(self, model_id: Hash32, room: Ints, first: Ints, served: int) -> _Places:
        block = self._table.offering(model_id)
        assert block is not None
        counts = room[block.rows]
        of = np.repeat(np.arange(len(block.rows)), counts)
        below = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = block.rows[of]
        wide = Block(
            rows,
            [block.per_prompt_kib_wei[index] for index in of.tolist()],
            [block.per_thousand_tokens_wei[index] for index in of.tolist()],
            block.us_per_token[of],
            block.is_warm[of],
        )
        return _Places(wide, of, first[rows] + below, below + self._reserved[rows], max(_FEW, 4 * served))

    def _choice(self, served: _Served, places: _Places, start: int) -> Choice:
        candidates = replace(served.candidates, block=places.block)
        keeps = served.keeps[places.of]
        costs, numbers = costs_wei(candidates, places.placed)[keeps], places.numbers[keeps]
        if len(costs) > 2 * places.most:
            # So many are served at these nodes that one of its own cheapest is free, but for what other models take.
            cheap = (costs <= np.partition(costs, places.most)[places.most]) | (numbers == start)
            costs, numbers = costs[cheap], numbers[cheap]
        return Choice(numbers, costs)

    def _served_at(self, served: _Served, row: int, choice: Choice, number: int) -> PlannedDecision:
        request, node = served.request, self._inputs.nodes[row]
        at = int(np.searchsorted(choice.places, number))
        route = Route(node, int(choice.costs[at]), reward_of(request, node))
        others = [other for other in served.preferred[:2].tolist() if other != row]
        runner_up = [self._route(request, self._inputs.nodes[other], 0) for other in others[:1]]
        return self._assigned(request, served.reason, route, self._rules.gas_charge_wei(request), runner_up)

    # Decisions

    def _assigned(
        self, request: WaitingRequest, reason: Reason, route: Route, gas_wei: int, others: Sequence[Route]
    ) -> PlannedDecision:
        decision = Decision(
            request_id=request.request_id,
            node=route.node.node,
            kind=DecisionKind.ASSIGNED,
            reason=reason,
            reward_wei=route.reward_wei,
            supersedes_round=request.supersedes_round,
        )
        cost = 0 if reason is Reason.QUORUM_KEPT else route.cost_wei + gas_wei
        runner_up: tuple[Address, int] = (ZERO_ADDRESS, 0)
        for other in others:
            runner_up = (other.node.node, other.cost_wei + gas_wei)
        return PlannedDecision(decision, self._score_of(request), cost, *runner_up)

    def _skipped(self, request: WaitingRequest, reason: Reason) -> PlannedDecision:
        decision = Decision(request.request_id, ZERO_ADDRESS, DecisionKind.SKIPPED, reason, 0, 0)
        return PlannedDecision(decision, self._score_of(request), 0, ZERO_ADDRESS, 0)

    def _too_late(self, request: WaitingRequest) -> PlannedDecision:
        decision = Decision(request.request_id, ZERO_ADDRESS, DecisionKind.TOO_LATE, Reason.DEADLINE_PASSED, 0, 0)
        return PlannedDecision(decision, _EXPIRED_SCORE_E9, 0, ZERO_ADDRESS, 0)

    def _score_of(self, request: WaitingRequest) -> int:
        return self._score_by_id[request.request_id]


def _competes(outcome: object) -> bool:
    return isinstance(outcome, Reason) and outcome in COMPETING


def _scores_of(inputs: CycleInputs, lane_of: Callable[[WaitingRequest], Lane]) -> Ints:
    policy, requests = inputs.policy, inputs.requests

    def column(values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(requests))

    return scores_e9(
        Weights(policy.fee_weight_milli, policy.wait_weight_milli, policy.deadline_weight_milli),
        inputs.median_fee_wei,
        column(max(1, policy.max_wait_ms(lane_of(request)) // 4) for request in requests),
        column(capped_fee_wei(request.priority_fee_wei) for request in requests),
        column(inputs.now_ms - request.included_at_s * 1000 for request in requests),
        column(request.deadline_s * 1000 - inputs.now_ms for request in requests),
    )
