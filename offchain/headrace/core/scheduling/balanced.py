"""Policy `balanced`: order by lanes, fairness and score says who is served; cost says where.

1. What is past its deadline leaves. The rest is looked at in the order of `core.lanes`, as many as each lane's working
   set holds. What no node could take, however free, is looked at but takes no place in the set: a thousand requests
   that pay nothing would keep all others out.
2. Who: a request is served if places can be found for it and all before it (`core.placement.Matching`).
3. Where: the served set is placed near its least total cost (`placing`), nodes filled up to their free places, each
   place of a node slower than the one before.

A share of the requests that can wait goes to nodes on probation where there are any, so that a new node can earn its
name. Which ones is in their ids, so that nobody chooses.

A quorum takes the cheapest free places of k different owners in its turn, as in policy `reference`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from headrace.core.cycle import CycleInputs, CyclePlan, NodeView, PlannedDecision, WaitingRequest
from headrace.core.fairness import Accounts
from headrace.core.lanes import LaneOrder, SharedLanes, Waiting
from headrace.core.placement import NEVER, Matching
from headrace.core.priority import Weights, capped_fee_wei, scores_e9
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.columns import Ints, Mask, capped
from headrace.core.routing.filters import filtered
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import NodeTable
from headrace.core.scheduling.options import Group, Options
from headrace.core.scheduling.placing import Placed, Served, placed_near_optimum
from headrace.core.scheduling.rules import PASSING, Route, Rules, reward_of
from headrace.core.types import ZERO_ADDRESS, Address, Decision, DecisionKind, Hash32, Lane, Reason

COMPETING = PASSING | {Reason.NODES_TAKEN, Reason.LANE_FULL}
"""Skipped for no reason of its own: it waits for its turn."""
_EXPIRED_SCORE_E9 = -(10**9)


def plan_balanced(
    inputs: CycleInputs, asked: RequestTable, nodes: NodeTable, witnesses: dict[Hash32, Address]
) -> CyclePlan:
    """Decide on every waiting request by policy `balanced`.

    Args:
        inputs: of the cycle.
        asked: their requests.
        nodes: their nodes.
        witnesses: see `Options`.
    """
    return _Cycle(inputs, asked, nodes, witnesses).run()


class _Cycle:
    def __init__(
        self, inputs: CycleInputs, asked: RequestTable, nodes: NodeTable, witnesses: dict[Hash32, Address]
    ) -> None:
        self._inputs = inputs
        self._asked = asked
        self._nodes = nodes
        self._rules = Rules(inputs, self._offering)
        self._free: Ints = np.maximum(0, nodes["max_in_flight"] - nodes["in_flight"])
        self._matching = Matching(self._free)
        self._reserved: Ints = np.zeros(len(inputs.nodes), dtype=np.int64)  # for quorums
        self._accounts = Accounts(inputs.accounts, inputs.floor_work)
        is_realtime = asked["lane"] == Lane.REALTIME
        self._is_realtime: Mask = is_realtime & (
            asked["priority_fee_wei"] >= capped(inputs.policy.realtime_fee_floor_wei)
        )
        self._scores: list[int] = self._scores_e9().tolist()
        self._options = Options(inputs, asked, nodes, self._rules, witnesses)
        self._served: list[Served] = []
        # What becomes of each request, in the order in which they were looked at.
        self._outcomes: list[tuple[int, Reason | Served | list[PlannedDecision]]] = []

    def run(self) -> CyclePlan:
        """See the module."""
        is_late: Mask = self._asked["deadline_s"] * 1000 <= self._inputs.now_ms
        lanes = self._look_at_all(is_late)
        places = placed_near_optimum(self._options, self._served, self._matching.nodes, self._free, self._reserved)
        decisions = [self._too_late(row) for row in np.flatnonzero(is_late).tolist()]
        decisions.extend(self._decided(places))
        requests = self._inputs.requests
        backlogged = {requests[row].requester for row, outcome in self._outcomes if _competes(outcome)}
        accounts, floor_work = self._accounts.closed(backlogged)
        return CyclePlan(tuple(decisions), self._inputs.lane_streak, lanes.lag, floor_work, accounts)

    def _decided(self, places: dict[int, Placed]) -> Iterator[PlannedDecision]:
        requests = self._inputs.requests
        for row, outcome in self._outcomes:
            if isinstance(outcome, Reason):
                if requests[row].last_reason is not outcome:
                    yield self._skipped(row, outcome)
            elif isinstance(outcome, Served):
                yield self._placed(row, outcome, places[row])
            else:
                yield from outcome

    # Who

    def _look_at_all(self, is_late: Mask) -> SharedLanes:
        lanes, requests = self._lanes(is_late), self._inputs.requests
        room = {Lane.REALTIME: self._inputs.policy.realtime_capacity, Lane.BULK: self._inputs.policy.bulk_capacity}
        while lanes:
            lane = lanes.next_lane()
            if not room[lane]:
                self._outcomes.extend((row, Reason.LANE_FULL) for row in lanes.close(lane))
                continue
            if not self._options.has(lanes.draw(lane, 1)[0]):
                self._options.look_up(lanes.draw(lane, room[lane]))
            row = lanes.pop(lane)
            outcome = self._look_at(row)
            self._outcomes.append((row, outcome))
            room[lane] -= not isinstance(outcome, Reason) or _competes(outcome)
            if not isinstance(outcome, Reason):
                lanes.count(lane, requests[row].work)
                self._accounts.charge(requests[row].requester, requests[row].work)
        return lanes

    def _lanes(self, is_late: Mask) -> SharedLanes:
        inputs, asked = self._inputs, self._asked
        ages_ms = inputs.now_ms - asked["included_at_s"] * 1000
        waiting = Waiting(
            [request.requester for request in inputs.requests],
            asked["included_at_s"],
            np.array(self._scores, dtype=np.int64),
            asked["work"],
            ages_ms > self._by_lane(inputs.policy.realtime_max_wait_ms, inputs.policy.bulk_max_wait_ms),
        )
        realtime, bulk = (np.flatnonzero(~is_late & mask) for mask in (self._is_realtime, ~self._is_realtime))
        return SharedLanes(
            LaneOrder(realtime, waiting, self._accounts), LaneOrder(bulk, waiting, self._accounts), inputs.lane_lag
        )

    def _by_lane(self, realtime: int, bulk: int) -> Ints:
        return np.where(self._is_realtime, capped(realtime), capped(bulk))

    def _scores_e9(self) -> Ints:
        policy, inputs, asked = self._inputs.policy, self._inputs, self._asked
        return scores_e9(
            Weights(policy.fee_weight_milli, policy.wait_weight_milli, policy.deadline_weight_milli),
            inputs.median_fee_wei,
            self._by_lane(max(1, policy.realtime_max_wait_ms // 4), max(1, policy.bulk_max_wait_ms // 4)),
            np.minimum(asked["priority_fee_wei"], capped_fee_wei(1 << 255)),
            inputs.now_ms - asked["included_at_s"] * 1000,
            asked["deadline_s"] * 1000 - inputs.now_ms,
        )

    def _look_at(self, row: int) -> Reason | Served | list[PlannedDecision]:
        found = self._options.of(row)
        if isinstance(found, Reason):
            return found
        if found is None:
            return self._quorum(row)
        group, index = found
        for costs, cheapest, reason in self._choices(row, group, index):
            if self._matching.take(group.candidates.block.rows, costs, cheapest):
                served = Served(row, group, index, costs, reason)
                self._served.append(served)
                return served
        return Reason.NODES_TAKEN

    def _choices(self, row: int, group: Group, index: int) -> Iterator[tuple[Ints, int, Reason]]:
        """The costs that its place is looked for with, and the index of the least."""
        explored = self._explored(row, group, index)
        if explored is not None:
            yield explored, -1, Reason.EXPLORATION
        yield group.costs[index], group.cheapest[index], Reason.LOWEST_COST

    def _explored(self, row: int, group: Group, index: int) -> Ints | None:
        """Costs at the nodes on probation that may have it, if it is one that they are given and time allows."""
        request = self._inputs.requests[row]
        if int(request.request_id[-6:], 16) % 1000 >= self._inputs.policy.exploration_milli:
            return None
        candidates = group.candidates
        if candidates.is_graduated.all():
            return None
        own = replace(candidates, rows=candidates.rows[index : index + 1])
        may_be = ~own.is_graduated & (2 * own.expected_ms[0] <= own.left_ms[0])
        costs: Ints = np.where(may_be, group.costs[index], NEVER)
        return costs if (costs < NEVER).any() else None

    # Quorums

    def _quorum(self, row: int) -> Reason | list[PlannedDecision]:
        request = self._inputs.requests[row]
        kept = self._rules.kept_routes(request)
        routes = self._routes(row, only_free=True)
        spares = self._rules.spares(request, kept, routes)
        if spares is None:
            return self._rules.why_no_quorum(request, kept, lambda: self._routes(row, only_free=False))
        others = [route for route in routes if all(route is not spare for spare in spares)]
        reward_wei = max(route.reward_wei for route in (*kept, *spares))
        decisions = []
        for reason, chosen in ((Reason.QUORUM_KEPT, kept), (Reason.LOWEST_COST, spares)):
            for route in chosen:
                alike = replace(route, reward_wei=reward_wei)
                decisions.append(self._assigned(row, reason, alike, others[:1]))
        for route in spares:
            node = self._nodes.row_of[route.node.node]
            self._matching.reserve(node)
            self._reserved[node] += 1
        return decisions

    def _routes(self, row: int, *, only_free: bool) -> list[Route]:
        """Over all nodes that may have it, cheapest first; of equals the first."""
        block = self._nodes.offering(self._inputs.requests[row].model_id)
        if block is None:
            return []
        candidates = self._options.candidates([row], block)
        placed = (self._free - self._matching.left)[block.rows]
        keeps, _ = filtered(candidates)
        if only_free:
            keeps &= self._matching.left[block.rows] > 0
        costs = costs_wei(candidates, placed)[0]
        chosen = np.flatnonzero(keeps[0])
        return [
            Route(self._inputs.nodes[block.rows[at]], int(costs[at]), int(candidates.rewards_wei[0, at]))
            for at in chosen[np.argsort(costs[chosen], kind="stable")].tolist()
        ]

    def _offering(self, model_id: Hash32) -> Sequence[NodeView]:
        block = self._nodes.offering(model_id)
        return [self._inputs.nodes[row] for row in block.rows.tolist()] if block else []

    # Decisions

    def _placed(self, row: int, served: Served, place: Placed) -> PlannedDecision:
        node = self._inputs.nodes[place.node]
        route = Route(node, place.cost_wei, reward_of(self._request(row), node))
        others: list[Route] = []
        if place.runner_up >= 0:
            others.append(Route(self._inputs.nodes[place.runner_up], place.runner_up_cost_wei, 0))
        return self._assigned(row, served.reason, route, others)

    def _assigned(self, row: int, reason: Reason, route: Route, others: Sequence[Route]) -> PlannedDecision:
        request = self._request(row)
        gas_wei = self._rules.gas_charge_wei(request)
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
        return PlannedDecision(decision, self._scores[row], cost, *runner_up)

    def _skipped(self, row: int, reason: Reason) -> PlannedDecision:
        decision = Decision(self._request(row).request_id, ZERO_ADDRESS, DecisionKind.SKIPPED, reason, 0, 0)
        return PlannedDecision(decision, self._scores[row], 0, ZERO_ADDRESS, 0)

    def _too_late(self, row: int) -> PlannedDecision:
        request_id, reason = self._request(row).request_id, Reason.DEADLINE_PASSED
        decision = Decision(request_id, ZERO_ADDRESS, DecisionKind.TOO_LATE, reason, 0, 0)
        return PlannedDecision(decision, _EXPIRED_SCORE_E9, 0, ZERO_ADDRESS, 0)

    def _request(self, row: int) -> WaitingRequest:
        return self._inputs.requests[row]


def _competes(outcome: object) -> bool:
    return isinstance(outcome, Reason) and outcome in COMPETING
