"""One pass of the scheduler: who is served and where, with the reason for each, as a pure function of its inputs.

Policy `reference`: order by the reference score (lane `strict`: realtime first, one bulk after each full streak),
each request to its cheapest node that is still free, one request a node and cycle, which reproduces
`tests/vectors/reference/schedule_round.json` exactly. On top of it stand the filters that the protocol needs: price
cap, gas budget, probation, nodes that failed the request before, silent nodes.

Policy `spread` has the same order, lanes and filters, and gives a node as many requests a cycle as it has free places.
Its routes cost reward, gas and time: the node's median time, up to twice as long when all its places are taken, at the
price of a second that the request's own priority fee sets. So requests go to where it is free, and of equals to the
cheapest.

A quorum is placed whole or not at all: on its k cheapest nodes of different owners, each for the highest of their
prices, since the market pays all k of a result alike. Listed again after a miss or dissent, it keeps the nodes that the
snapshot names and gets new ones beside them, at most n nodes in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

from headrace.core.errors import InvalidInput
from headrace.core.fees import charged_gas, charged_gas_price_wei, is_on_probation, reward_wei
from headrace.core.gas import call_out_gas, fits_alone
from headrace.core.reference.priority import is_expired, score_e9, score_of
from headrace.core.reference.route_cost import find_route
from headrace.core.reference.types import ReferenceNode, ReferenceRequest
from headrace.core.types import (
    ZERO_ADDRESS,
    Address,
    Decision,
    DecisionKind,
    GasQuote,
    Hash32,
    Lane,
    MarketTerms,
    Price,
    Reason,
)

WEI_PER_GWEI = 10**9
WEI_PER_ETH = 10**18
LISTINGS_AN_ASSIGNMENT = 2
"""How often a quorum is listed at most, times the assignments that the policy allows a single request. Each listing is
in a round of its own, whose record only the relayer pays for."""
REFERENCE, SPREAD = "reference", "spread"
_POLICIES = frozenset({(REFERENCE, "strict"), (SPREAD, "strict")})
LEAST_DELAY_WEI_PER_S = 10**12
"""What a second of waiting is taken to cost when a request pays nothing for its turn. Policy `spread`."""
RELEASE_MARGIN_S = 30
"""How long after a release ended a request stays unassigned: a cancel may be in a block that is not seen yet."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that a relayer publishes and is held to. Its hash is in each round's record."""

    name: str = "reference"
    lanes: str = "strict"
    realtime_capacity: int = 200
    bulk_capacity: int = 1_000
    realtime_streak: int = 20
    realtime_fee_floor_wei: int = 0
    max_assignments: int = 3
    expected_batch_size: int = 8
    heartbeat_timeout_ms: int = 15_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "expected_batch_size" else 0
            if isinstance(value, int) and value < least:
                raise InvalidInput(f"{field.name} of a policy is {value}: it must be at least {least}")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The block that a cycle's chain facts were read at."""

    block: int
    hash: Hash32
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that is eligible, with what its scheduling depends on."""

    request_id: Hash32
    model_id: Hash32
    model_name: str
    lane: Lane
    priority_fee_wei: int  # raises included
    included_at_s: int
    deadline_s: int  # effective
    prompt_bytes: int
    max_output_tokens: int
    required_memory_mb: int
    batchable: bool
    max_reward_wei: int
    gas_budget_wei: int
    prompt_available: bool
    assignments: int  # attempts; of a quorum, how often it was listed
    excluded_nodes: tuple[Address, ...]
    supersedes_round: int
    k: int  # of a quorum; 0 = one node serves it
    n: int
    kept_nodes: tuple[Address, ...]  # of a quorum that is listed again: whom it goes on with
    tried_owners: tuple[Address, ...]  # of all nodes that a quorum was listed with
    deterministic: bool  # whether prompt and model fix the answer; looked at for quorums only
    released_until_s: int  # 0, or until when the requester may cancel on the relayer's word that it is not assigned
    callback_gas: int = 0
    answer_bytes: int = 0  # most of an answer that must go on-chain; 0 = none must
    verifier: Address = ZERO_ADDRESS
    verifier_gas: int = 0  # what the verifier is counted with


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that a node offers, at its price."""

    model_id: Hash32
    model_name: str
    price: Price


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that is linked and bonded. Load and memory are its own signed word, the rest is chain and history."""

    node: Address
    owner: Address
    offers: tuple[Offer, ...]
    free_memory_mb: int
    in_flight: int
    max_in_flight: int
    avg_latency_ms: int
    settled_count: int
    joined_at_s: int
    heartbeat_at_ms: int
    heartbeat: str  # canonical JSON of the heartbeat's content
    heartbeat_signature: str
    verifiers: tuple[Address, ...] = ()  # contracts to which it can prove its answers


@dataclass(frozen=True, slots=True)
class CycleInputs:
    """Everything that a cycle decides on: its snapshot. Requests and nodes are in ascending order of their ids."""

    chain_id: int
    market: Address
    relayer: Address
    round: int
    cycle: int
    now_ms: int
    anchor: Anchor
    gas: GasQuote
    terms: MarketTerms
    policy: Policy
    lane_streak: int
    requests: tuple[WaitingRequest, ...]
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class PlannedDecision:
    """A decision with what led to it. `score_e9` is the score × 10⁹; costs are 0 unless assigned."""

    decision: Decision
    score_e9: int
    cost_wei: int
    runner_up: Address
    runner_up_cost_wei: int


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """What a cycle decided, in the order in which it did, and the streak that the next one starts with."""

    decisions: tuple[PlannedDecision, ...]
    lane_streak: int

    def of_kind(self, kind: DecisionKind) -> list[PlannedDecision]:
        """The decisions of one kind."""
        return [planned for planned in self.decisions if planned.decision.kind == kind]


@dataclass(frozen=True, slots=True)
class _Route:
    node: NodeView
    cost: float | int  # by which routes are compared: in ether, of `spread` in wei
    reward_wei: int

    @property
    def cost_wei(self) -> int:
        return self.cost if isinstance(self.cost, int) else round(self.cost * WEI_PER_ETH)


def plan_cycle(inputs: CycleInputs) -> CyclePlan:
    """Decide on every waiting request.

    Returns:
        One decision for each request of `inputs`, in the order in which they were taken; k for a quorum that is placed.

    Raises:
        InvalidInput: the policy is none that this version has. A replay must not take another for it.
    """
    named = (inputs.policy.name, inputs.policy.lanes)
    if named not in _POLICIES:
        raise InvalidInput(f"there is no policy {named[0]} with lanes {named[1]} in this version")
    cycle = _Cycle(inputs)
    return cycle.run()


class _Cycle:
    """The state of one pass: which nodes are still free, and the streak of realtime assignments."""

    def __init__(self, inputs: CycleInputs) -> None:
        self._inputs = inputs
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
        self._streak = before + 1 if self._is_realtime(request) else 0

    def _is_realtime(self, request: WaitingRequest) -> bool:
        pays_for_it = request.priority_fee_wei >= self._inputs.policy.realtime_fee_floor_wei
        return request.lane is Lane.REALTIME and pays_for_it

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
            place = int(self._could_be_served(request))
            if self._is_realtime(request) and realtime_left >= place:
                realtime.append(request)
                realtime_left -= place
            elif bulk_left >= place:
                bulk.append(request)
                bulk_left -= place
            else:
                self._skip(request, Reason.LANE_FULL)
        return realtime, bulk

    def _could_be_served(self, request: WaitingRequest) -> bool:
        if self._refusal_of(request) is not Reason.NONE:
            return False
        lasting = [excludes for excludes, reason in self._filters() if reason is not Reason.NODES_BUSY]
        able = [node for node in self._inputs.nodes if not any(excludes(request, node) for excludes in lasting)]
        if not request.k:
            return bool(able)
        kept = self._kept_routes(request)
        return len(_owners(able) - _taken_owners(request, kept)) >= request.k - len(kept)

    def _place(self, request: WaitingRequest) -> bool:
        refusal = self._refusal_of(request)
        if refusal is not Reason.NONE:
            self._skip(request, refusal)
            return False
        if request.k:
            return self._place_quorum(request)
        routes = self._routes(request, self._free)
        if not routes:
            self._skip(request, self._why_no_route(request))
            return False
        best, *others = routes
        self._take(best.node.node)
        self._decide(request, DecisionKind.ASSIGNED, Reason.LOWEST_COST, self._score(request), best, *others[:1])
        return True

    def _take(self, key: Address) -> None:
        """A node was given a request."""
        node = replace(self._nodes[key], in_flight=self._nodes[key].in_flight + 1)
        if self._inputs.policy.name == REFERENCE or node.in_flight >= node.max_in_flight:
            self._free.pop(key)
        else:
            self._nodes[key] = node

    def _place_quorum(self, request: WaitingRequest) -> bool:
        kept = self._kept_routes(request)
        routes = self._routes(request, self._free)
        spares = self._spares(request, kept, routes)
        if spares is None:
            self._skip(request, self._why_no_quorum(request, kept))
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

    def _kept_routes(self, request: WaitingRequest) -> list[_Route]:
        """Over the nodes that a quorum goes on with, as far as they can still be paid: what they answered, or are at
        work on, costs neither time nor memory again."""
        lasting = [
            excludes for excludes, reason in self._filters() if reason not in (Reason.NODES_BUSY, Reason.NODE_MEMORY)
        ]
        routes: list[_Route] = []
        for node in (self._nodes[key] for key in request.kept_nodes if key in self._nodes):
            is_of_another_owner = all(route.node.owner != node.owner for route in routes)
            if is_of_another_owner and not any(excludes(request, node) for excludes in lasting):
                routes.append(_Route(node, 0, _reward(request, node)))
        return routes[: request.k]

    def _spares(self, request: WaitingRequest, kept: Sequence[_Route], routes: Sequence[_Route]) -> list[_Route] | None:
        """The nodes that make a quorum whole, cheapest first; None when there are too few, or n does not allow it."""
        wanted, taken = request.k - len(kept), _taken_owners(request, kept)
        if wanted > _spares_left(request):
            return None
        cap_wei = self._inputs.terms.probation_max_reward_wei
        # One node on probation caps what all of its set are paid.
        for pool in (
            routes,
            [route for route in routes if self._is_graduated(route.node)],
            [route for route in routes if route.reward_wei <= cap_wei],
        ):
            spares = _of_different_owners(pool, taken, wanted)
            if len(spares) == wanted and self._is_payable([*kept, *spares]):
                return spares
        return None

    def _is_payable(self, routes: Sequence[_Route]) -> bool:
        is_capped = any(not self._is_graduated(route.node) for route in routes)
        return not is_capped or all(route.reward_wei <= self._inputs.terms.probation_max_reward_wei for route in routes)

    def _why_no_quorum(self, request: WaitingRequest, kept: Sequence[_Route]) -> Reason:
        """The filter that took away too many, if it left nobody or if they will be back; else that they are too few."""
        wanted, taken = request.k - len(kept), _taken_owners(request, kept)
        if wanted > _spares_left(request):
            return Reason.NODES_SILENT  # a node that it goes on with is away, and no other may be tried any more
        remaining = list(self._inputs.nodes)
        for excludes, reason in self._filters():
            remaining = [node for node in remaining if not excludes(request, node)]
            if len(_owners(remaining) - taken) < wanted:
                return reason if not remaining or reason is Reason.NODES_BUSY else Reason.OWNERS_TOO_FEW
        could_be = self._spares(request, kept, self._routes(request, self._nodes)) is not None
        return Reason.NODES_TAKEN if could_be else Reason.PROBATION

    def _refusal_of(self, request: WaitingRequest) -> Reason:
        """What keeps a request from any node."""
        if not request.prompt_available:
            return Reason.PROMPT_MISSING
        if request.released_until_s and self._inputs.now_ms <= (request.released_until_s + RELEASE_MARGIN_S) * 1000:
            return Reason.RELEASED
        if request.k and not request.deterministic:
            return Reason.NOT_DETERMINISTIC
        if self._is_exhausted(request):
            return Reason.ATTEMPTS_EXHAUSTED
        if request.k and request.supersedes_round >= self._inputs.round:
            return Reason.ROUND_OF_QUORUM
        if not fits_alone(request.callback_gas, request.verifier_gas, request.answer_bytes, max(1, request.k)):
            return Reason.ANSWER_TOO_LONG
        if self._gas_charge_wei(request) > request.gas_budget_wei:
            return Reason.GAS_BUDGET_SHORT
        return Reason.NONE

    def _is_exhausted(self, request: WaitingRequest) -> bool:
        if not request.k:
            return request.assignments >= self._inputs.policy.max_assignments
        missing = request.k - len(request.kept_nodes)
        most_listings = LISTINGS_AN_ASSIGNMENT * self._inputs.policy.max_assignments
        return missing > _spares_left(request) or request.assignments >= most_listings

    def _gas_charge_wei(self, request: WaitingRequest) -> int:
        size = self._inputs.policy.expected_batch_size if request.batchable else 1
        # That other quorums of the same nodes are in the batch cannot be counted on.
        gas = charged_gas(self._inputs.terms, size, request.answer_bytes, max(1, request.k))
        gas += call_out_gas(request.callback_gas, request.verifier_gas)
        return gas * charged_gas_price_wei(self._inputs.terms, self._inputs.gas)

    def _routes(self, request: WaitingRequest, among: Iterable[Address]) -> list[_Route]:
        """All routes over some nodes, cheapest first; of equals the one whose node comes first."""
        candidates = (self._nodes[key] for key in among)
        routes = [route for node in candidates if (route := self._route(request, node)) is not None]
        routes.sort(key=lambda route: route.cost)
        return routes

    def _route(self, request: WaitingRequest, node: NodeView) -> _Route | None:
        if any(excludes(request, node) for excludes, _ in self._filters()):
            return None
        if self._inputs.policy.name == SPREAD:
            return _Route(node, self._spread_cost_wei(request, node), _reward(request, node))
        gas_price_gwei = self._inputs.gas.price_wei / WEI_PER_GWEI
        reference = find_route(_reference_request(request), self._references[node.node], gas_price_gwei)
        if reference is None:
            return None
        return _Route(node, reference.total_cost_eth, _reward(request, node))

    def _spread_cost_wei(self, request: WaitingRequest, node: NodeView) -> int:
        left_s = max(1, request.deadline_s - self._inputs.now_ms // 1000)
        delay_wei_per_s = max(LEAST_DELAY_WEI_PER_S, request.priority_fee_wei // left_s)
        places = max(1, node.max_in_flight)
        expected_ms = node.avg_latency_ms * (places + min(node.in_flight, places)) // places
        return _reward(request, node) + self._gas_charge_wei(request) + expected_ms * delay_wei_per_s // 1000

    def _filters(self) -> Sequence[tuple[Callable[[WaitingRequest, NodeView], bool], Reason]]:
        """Each excludes a node for a request; in the order in which their reasons count."""
        return (
            (lambda request, node: _offer_of(request, node) is None, Reason.NO_NODE_FOR_MODEL),
            (_cannot_prove, Reason.NO_PROOF),
            (self._is_silent, Reason.NODES_SILENT),
            (lambda request, node: node.node in request.excluded_nodes, Reason.NODES_EXCLUDED),
            (
                lambda request, node: _reward(request, node) * max(1, request.k) > request.max_reward_wei,
                Reason.PRICE_ABOVE_MAX,
            ),
            (self._is_beyond_probation, Reason.PROBATION),
            (lambda request, node: node.free_memory_mb < request.required_memory_mb, Reason.NODE_MEMORY),
            (lambda _, node: node.in_flight >= node.max_in_flight, Reason.NODES_BUSY),
        )

    def _is_silent(self, _: WaitingRequest, node: NodeView) -> bool:
        return self._inputs.now_ms - node.heartbeat_at_ms > self._inputs.policy.heartbeat_timeout_ms

    def _is_beyond_probation(self, request: WaitingRequest, node: NodeView) -> bool:
        return not self._is_graduated(node) and _reward(request, node) > self._inputs.terms.probation_max_reward_wei

    def _is_graduated(self, node: NodeView) -> bool:
        now_s = self._inputs.now_ms // 1000
        return not is_on_probation(self._inputs.terms, node.settled_count, node.joined_at_s, now_s)

    def _why_no_route(self, request: WaitingRequest) -> Reason:
        """The last filter that took away what was left, counting busy and taken nodes as the nearest to a route."""
        remaining = list(self._inputs.nodes)
        for excludes, reason in self._filters():
            remaining = [node for node in remaining if not excludes(request, node)]
            if not remaining:
                return reason
        return Reason.NODES_TAKEN

    def _score(self, request: WaitingRequest) -> float:
        return score_of(_reference_request(request), self._inputs.now_ms)

    def _skip(self, request: WaitingRequest, reason: Reason) -> None:
        self._decide(request, DecisionKind.SKIPPED, reason, self._score(request))

    def _decide(
        self,
        request: WaitingRequest,
        kind: DecisionKind,
        reason: Reason,
        score: float,
        route: _Route | None = None,
        runner_up: _Route | None = None,
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


def _spares_left(request: WaitingRequest) -> int:
    """How many more nodes a quorum may be listed with."""
    return request.n - len(request.kept_nodes) - len(request.excluded_nodes)


def _owners(nodes: Iterable[NodeView]) -> set[Address]:
    return {node.owner for node in nodes}


def _taken_owners(request: WaitingRequest, kept: Iterable[_Route]) -> set[Address]:
    """Whose nodes cannot be new to a quorum: nobody has two of its votes."""
    return {*request.tried_owners, *(route.node.owner for route in kept)}


def _of_different_owners(routes: Iterable[_Route], taken: set[Address], wanted: int) -> list[_Route]:
    """The first of these routes whose nodes have owners of their own, at most as many as are wanted."""
    chosen: list[_Route] = []
    for route in routes:
        owners = taken | {each.node.owner for each in chosen}
        if len(chosen) < wanted and route.node.owner not in owners:
            chosen.append(route)
    return chosen


def _offer_of(request: WaitingRequest, node: NodeView) -> Offer | None:
    return next((offer for offer in node.offers if offer.model_id == request.model_id), None)


def _cannot_prove(request: WaitingRequest, node: NodeView) -> bool:
    return request.verifier not in (ZERO_ADDRESS, *node.verifiers)


def _reward(request: WaitingRequest, node: NodeView) -> int:
    offer = _offer_of(request, node)
    return reward_wei(offer.price, request.prompt_bytes, request.max_output_tokens) if offer else 0


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
