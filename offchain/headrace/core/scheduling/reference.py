"""Policy `reference`: highest score first, each request to its cheapest node that is still unused.

Lanes are `strict`: realtime first, one bulk after each full streak. One request a node and cycle, which reproduces
`tests/vectors/reference/schedule_round.json` exactly. On top of it stand the rules that the protocol needs.

A quorum is placed whole or not at all: on its k cheapest nodes of different owners, each for the highest of their
prices, since the market pays all k of a result alike. Listed again after a miss or dissent, it keeps the nodes that the
snapshot names and gets new ones beside them, at most n nodes in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from headrace.core.cycle import CycleInputs, CyclePlan, NodeView, PlannedDecision, WaitingRequest
from headrace.core.reference.priority import is_expired, score_e9, score_of
from headrace.core.reference.route_cost import find_route
from headrace.core.reference.types import ReferenceNode, ReferenceRequest
from headrace.core.scheduling.rules import Route, Rules, reward_of
from headrace.core.types import ZERO_ADDRESS, Address, Decision, DecisionKind, Reason

WEI_PER_GWEI = 10**9


def plan_reference(inputs: CycleInputs) -> CyclePlan:
    """Decide on every waiting request by policy `reference`."""
    return _Cycle(inputs).run()


class _Cycle:
    """The state of one pass: which nodes are still free, and the streak of realtime assignments."""

    def __init__(self, inputs: CycleInputs) -> None:
        self._inputs = inputs
        self._rules = Rules(inputs)
        self._free = dict.fromkeys(node.node for node in inputs.nodes)
        self._references = {node.node: _reference_node(node) for node in inputs.nodes}
        self._nodes = {node.node: node for node in inputs.nodes}
        self._streak = inputs.lane_streak
        self._planned: list[PlannedDecision] = []

    def run(self) -> CyclePlan:
        waiting = [request for request in self._inputs.requests if not self._drop_too_late(request)]
        waiting.sort(key=self._score, reverse=True)
        realtime, bulk = self._working_set(waiting)
        while realtime or bulk:
            is_bulks_turn = bool(bulk) and self._streak >= self._inputs.policy.realtime_streak
            request = bulk.popleft() if is_bulks_turn or not realtime else realtime.popleft()
            if self._place(request):
                self._count(request, is_bulks_turn)
        return CyclePlan(tuple(self._planned), self._streak)

    def _count(self, request: WaitingRequest, was_bulks_turn: bool) -> None:
        """Bulk's turn starts a new streak; a realtime request that overflowed into bulk counts as what it is."""
        before = 0 if was_bulks_turn else self._streak
        self._streak = before + 1 if self._rules.is_realtime(request) else 0

    def _drop_too_late(self, request: WaitingRequest) -> bool:
        if not is_expired(_reference_request(request), self._inputs.now_ms):
            return False
        self._decide(request, DecisionKind.TOO_LATE, Reason.DEADLINE_PASSED, score=-1.0)
        return True

    def _working_set(self, waiting: Iterable[WaitingRequest]) -> tuple[deque[WaitingRequest], deque[WaitingRequest]]:
        """The best of each lane, as many as it holds; what does not fit stays in the durable backlog.

        What no node could take, however free, is looked at in its turn but takes no place: a thousand requests that
        pay nothing would keep all others out.
        """
        policy = self._inputs.policy
        realtime: deque[WaitingRequest] = deque()
        bulk: deque[WaitingRequest] = deque()
        realtime_left, bulk_left = policy.realtime_capacity, policy.bulk_capacity
        for request in waiting:
            place = int(self._rules.could_be_served(request))
            if self._rules.is_realtime(request) and realtime_left >= place:
                realtime.append(request)
                realtime_left -= place
            elif bulk_left >= place:
                bulk.append(request)
                bulk_left -= place
            else:
                self._skip(request, Reason.LANE_FULL)
        return realtime, bulk

    def _place(self, request: WaitingRequest) -> bool:
        refusal = self._rules.refusal_of(request)
        if refusal is not Reason.NONE:
            self._skip(request, refusal)
            return False
        if request.k:
            return self._place_quorum(request)
        routes = self._routes(request, self._free)
        if not routes:
            self._skip(request, self._rules.why_no_route(request))
            return False
        best, *others = routes
        self._take(best.node.node)
        self._decide(request, DecisionKind.ASSIGNED, Reason.LOWEST_COST, self._score(request), best, *others[:1])
        return True

    def _take(self, key: Address) -> None:
        """A node was given a request, which is all it is given in this cycle."""
        self._free.pop(key)

    def _place_quorum(self, request: WaitingRequest) -> bool:
        kept = self._rules.kept_routes(request)
        routes = self._routes(request, self._free)
        spares = self._rules.spares(request, kept, routes)
        if spares is None:
            self._skip(request, self._rules.why_no_quorum(request, kept, lambda: self._routes(request, self._nodes)))
            return False
        others = [route for route in routes if all(route is not spare for spare in spares)]
        reward_wei = max(route.reward_wei for route in (*kept, *spares))
        for reason, chosen in ((Reason.QUORUM_KEPT, kept), (Reason.LOWEST_COST, spares)):
            for route in chosen:
                alike = replace(route, reward_wei=reward_wei)
                self._decide(request, DecisionKind.ASSIGNED, reason, self._score(request), alike, *others[:1])
        for route in spares:
            self._take(route.node.node)
        return True

    def _routes(self, request: WaitingRequest, among: Iterable[Address]) -> list[Route]:
        """All routes over some nodes, cheapest first; of equals the one whose node comes first."""
        candidates = (self._nodes[key] for key in among)
        routes = [route for node in candidates if (route := self._route(request, node)) is not None]
        routes.sort(key=lambda route: route.cost)
        return routes

    def _route(self, request: WaitingRequest, node: NodeView) -> Route | None:
        if any(excludes(request, node) for excludes, _ in self._rules.filters()):
            return None
        gas_price_gwei = self._inputs.gas.price_wei / WEI_PER_GWEI
        reference = find_route(_reference_request(request), self._references[node.node], gas_price_gwei)
        if reference is None:
            return None
        return Route(node, reference.total_cost_eth, reward_of(request, node))

    def _score(self, request: WaitingRequest) -> float:
        return score_of(_reference_request(request), self._inputs.now_ms)

    def _skip(self, request: WaitingRequest, reason: Reason) -> None:
        if reason is request.last_reason:
            return  # it was told so
        self._decide(request, DecisionKind.SKIPPED, reason, self._score(request))

    def _decide(
        self,
        request: WaitingRequest,
        kind: DecisionKind,
        reason: Reason,
        score: float,
        route: Route | None = None,
        runner_up: Route | None = None,
    ) -> None:
        self._planned.append(
            PlannedDecision(
                decision=Decision(
                    request_id=request.request_id,
                    node=route.node.node if route else ZERO_ADDRESS,
                    kind=kind,
                    reason=reason,
                    reward_wei=route.reward_wei if route else 0,
                    supersedes_round=request.supersedes_round if route else 0,
                ),
                score_e9=score_e9(score),
                cost_wei=route.cost_wei if route else 0,
                runner_up=runner_up.node.node if runner_up else ZERO_ADDRESS,
                runner_up_cost_wei=runner_up.cost_wei if runner_up else 0,
            )
        )


def _reference_request(request: WaitingRequest) -> ReferenceRequest:
    return ReferenceRequest(
        id=request.request_id,
        model_id=request.model_name,
        priority_fee_wei=request.priority_fee_wei,
        submitted_at_ms=request.included_at_s * 1000,
        deadline_ms=request.deadline_s * 1000,
        required_memory_mb=request.required_memory_mb,
        batchable=request.batchable,
    )


def _reference_node(node: NodeView) -> ReferenceNode:
    return ReferenceNode(
        id=node.node,
        supported_models=frozenset(offer.model_name for offer in node.offers),
        free_memory_mb=node.free_memory_mb,
        in_flight=node.in_flight,
        max_in_flight=node.max_in_flight,
        avg_latency_ms=node.avg_latency_ms,
    )
