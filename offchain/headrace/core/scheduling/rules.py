"""What may go where: the rules of the protocol that every policy keeps, for one request and one node at a time.

`core/routing` has the same filters over columns of nodes; a property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.core.cycle import BALANCED, CycleInputs, NodeView, Offer, WaitingRequest
from headrace.core.fees import charged_gas, charged_gas_price_wei, is_on_probation, reward_wei
from headrace.core.gas import call_out_gas, fits_alone, result_bytes
from headrace.core.routing.cost import expected_ms
from headrace.core.types import ZERO_ADDRESS, Address, Hash32, Lane, Reason

LISTINGS_AN_ASSIGNMENT = 2
"""How often a quorum is listed at most, times the assignments that the policy allows a single request. Each listing is
in a round of its own, whose record only the relayer pays for."""
RELEASE_MARGIN_S = 30
"""How long after a release ended a request stays unassigned: a cancel may be in a block that is not seen yet."""
PASSING = frozenset({Reason.NODES_BUSY, Reason.STAKE_SHORT})
"""What ends when a node finishes its work."""
_ASIDE_FOR_KEPT = PASSING | {Reason.NODE_MEMORY, Reason.NODES_TOO_SLOW}
WEI_PER_ETH = 10**18


@dataclass(frozen=True, slots=True)
class Route:
    """A request over a node. Routes are compared by their cost: in ether as a double (`reference`), or in wei."""

    node: NodeView
    cost: float | int
    reward_wei: int

    @property
    def cost_wei(self) -> int:
        """The cost as it stands in a decision."""
        return self.cost if isinstance(self.cost, int) else round(self.cost * WEI_PER_ETH)


class Rules:
    """The rules over one cycle's inputs."""

    def __init__(self, inputs: CycleInputs, offering: Callable[[Hash32], Sequence[NodeView]] | None = None) -> None:
        """
        Args:
            inputs: of the cycle.
            offering: the nodes that offer a model, where they are known; else all are looked through.
        """
        self._inputs = inputs
        self._offering = offering or self._nodes_offering
        self._charges: dict[tuple[int, ...], int] = {}
        self._fitting: dict[tuple[int, int, int, int], bool] = {}

    @cached_property
    def _by_key(self) -> dict[Address, NodeView]:
        return {node.node: node for node in self._inputs.nodes}

    def _nodes_offering(self, model_id: Hash32) -> Sequence[NodeView]:
        return [node for node in self._inputs.nodes if any(offer.model_id == model_id for offer in node.offers)]

    def is_realtime(self, request: WaitingRequest) -> bool:
        """Whether a request pays for the lane that it asks for."""
        pays_for_it = request.priority_fee_wei >= self._inputs.policy.realtime_fee_floor_wei
        return request.lane is Lane.REALTIME and pays_for_it

    def refusal_of(self, request: WaitingRequest) -> Reason:
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
        if not self._fits_alone(request):
            return Reason.ANSWER_TOO_LONG
        if self.gas_charge_wei(request) > request.gas_budget_wei:
            return Reason.GAS_BUDGET_SHORT
        return Reason.NONE

    def _fits_alone(self, request: WaitingRequest) -> bool:
        of = (request.callback_gas, request.verifier_gas, request.answer_bytes, max(1, request.k))
        if of not in self._fitting:
            self._fitting[of] = fits_alone(*of)
        return self._fitting[of]

    def _is_exhausted(self, request: WaitingRequest) -> bool:
        if not request.k:
            return request.assignments >= self._inputs.policy.max_assignments
        missing = request.k - len(request.kept_nodes)
        most_listings = LISTINGS_AN_ASSIGNMENT * self._inputs.policy.max_assignments
        return missing > spares_left(request) or request.assignments >= most_listings

    def gas_charge_wei(self, request: WaitingRequest) -> int:
        """What its settlement is expected to cost at the price of now: what the market charges, and its data's share on
        a rollup."""
        of = (request.batchable, request.answer_bytes, request.k, request.callback_gas, request.verifier_gas)
        if of not in self._charges:
            size = self._inputs.policy.expected_batch_size if request.batchable else 1
            # That other quorums of the same nodes are in the batch cannot be counted on.
            gas = charged_gas(self._inputs.terms, size, request.answer_bytes, max(1, request.k))
            gas += call_out_gas(request.callback_gas, request.verifier_gas)
            data_wei = result_bytes(max(1, request.k), request.answer_bytes) * self._inputs.gas.data_byte_wei
            self._charges[of] = gas * charged_gas_price_wei(self._inputs.terms, self._inputs.gas) + data_wei
        return self._charges[of]

    def could_be_served(self, request: WaitingRequest) -> bool:
        """Whether the nodes that there are could take it, were they free."""
        if self.refusal_of(request) is not Reason.NONE:
            return False
        lasting = [excludes for excludes, reason in self.filters() if reason not in PASSING]
        able = [node for node in self._inputs.nodes if not any(excludes(request, node) for excludes in lasting)]
        if not request.k:
            return bool(able)
        kept = self.kept_routes(request)
        return len(owners_of(able) - taken_owners(request, kept)) >= request.k - len(kept)

    def kept_routes(self, request: WaitingRequest) -> list[Route]:
        """Over the nodes that a quorum goes on with, as far as they can still be paid: what they answered, or are at
        work on, costs neither time nor memory again."""
        lasting = [excludes for excludes, reason in self.filters() if reason not in _ASIDE_FOR_KEPT]
        routes: list[Route] = []
        for node in (self._by_key[key] for key in request.kept_nodes if key in self._by_key):
            is_of_another_owner = all(route.node.owner != node.owner for route in routes)
            if is_of_another_owner and not any(excludes(request, node) for excludes in lasting):
                routes.append(Route(node, 0, reward_of(request, node)))
        return routes[: request.k]

    def spares(self, request: WaitingRequest, kept: Sequence[Route], routes: Sequence[Route]) -> list[Route] | None:
        """The nodes that make a quorum whole, cheapest first; None when there are too few, or n does not allow it."""
        wanted, taken = request.k - len(kept), taken_owners(request, kept)
        if wanted > spares_left(request):
            return None
        cap_wei = self._inputs.terms.probation_max_reward_wei
        # One node on probation caps what all of its set are paid.
        for pool in (
            routes,
            [route for route in routes if self.is_graduated(route.node)],
            [route for route in routes if route.reward_wei <= cap_wei],
        ):
            spares = _of_different_owners(pool, taken, wanted)
            if len(spares) == wanted and self._is_payable([*kept, *spares]):
                return spares
        return None

    def _is_payable(self, routes: Sequence[Route]) -> bool:
        is_capped = any(not self.is_graduated(route.node) for route in routes)
        return not is_capped or all(route.reward_wei <= self._inputs.terms.probation_max_reward_wei for route in routes)

    def why_no_quorum(
        self, request: WaitingRequest, kept: Sequence[Route], routes: Callable[[], Sequence[Route]]
    ) -> Reason:
        """The filter that took away too many, if it left nobody or if they will be back; else that they are too few.

        Args:
            request: the quorum.
            kept: from `kept_routes`.
            routes: over all nodes, as if none of them had been given anything in this cycle.
        """
        wanted, taken = request.k - len(kept), taken_owners(request, kept)
        if wanted > spares_left(request):
            return Reason.NODES_SILENT  # a node that it goes on with is away, and no other may be tried any more
        remaining = list(self._offering(request.model_id))
        for excludes, reason in self.filters():
            remaining = [node for node in remaining if not excludes(request, node)]
            if len(owners_of(remaining) - taken) < wanted:
                return reason if not remaining or reason in PASSING else Reason.OWNERS_TOO_FEW
        could_be = self.spares(request, kept, routes()) is not None
        return Reason.NODES_TAKEN if could_be else Reason.PROBATION

    def filters(self) -> Sequence[tuple[Callable[[WaitingRequest, NodeView], bool], Reason]]:
        """Each excludes a node for a request; in the order in which their reasons count."""
        further = ((self._is_too_slow, Reason.NODES_TOO_SLOW), (self._has_too_little_stake, Reason.STAKE_SHORT))
        return (
            (lambda request, node: offer_of(request, node) is None, Reason.NO_NODE_FOR_MODEL),
            (_cannot_prove, Reason.NO_PROOF),
            (self._is_silent, Reason.NODES_SILENT),
            (lambda request, node: node.node in request.excluded_nodes, Reason.NODES_EXCLUDED),
            (
                lambda request, node: reward_of(request, node) * max(1, request.k) > request.max_reward_wei,
                Reason.PRICE_ABOVE_MAX,
            ),
            (self._is_beyond_probation, Reason.PROBATION),
            (lambda request, node: node.free_memory_mb < request.required_memory_mb, Reason.NODE_MEMORY),
            *(further if self._inputs.policy.name == BALANCED else ()),
            (lambda _, node: node.in_flight >= node.max_in_flight, Reason.NODES_BUSY),
        )

    def _is_silent(self, _: WaitingRequest, node: NodeView) -> bool:
        return self._inputs.now_ms - node.heartbeat_at_ms > self._inputs.policy.heartbeat_timeout_ms

    def _is_beyond_probation(self, request: WaitingRequest, node: NodeView) -> bool:
        return not self.is_graduated(node) and reward_of(request, node) > self._inputs.terms.probation_max_reward_wei

    def _is_too_slow(self, request: WaitingRequest, node: NodeView) -> bool:
        offer = offer_of(request, node)
        left_ms = request.deadline_s * 1000 - self._inputs.now_ms
        return offer is not None and expected_ms(request, node, offer) > left_ms

    def _has_too_little_stake(self, request: WaitingRequest, node: NodeView) -> bool:
        return node.exposure_wei + reward_of(request, node) > node.stake_wei

    def is_graduated(self, node: NodeView) -> bool:
        """Whether the market no longer caps its reward."""
        now_s = self._inputs.now_ms // 1000
        return not is_on_probation(self._inputs.terms, node.settled_count, node.joined_at_s, now_s)

    def why_no_route(self, request: WaitingRequest) -> Reason:
        """The last filter that took away what was left, counting busy and taken nodes as the nearest to a route."""
        remaining = list(self._inputs.nodes)
        for excludes, reason in self.filters():
            remaining = [node for node in remaining if not excludes(request, node)]
            if not remaining:
                return reason
        return Reason.NODES_TAKEN


def spares_left(request: WaitingRequest) -> int:
    """How many more nodes a quorum may be listed with."""
    return request.n - len(request.kept_nodes) - len(request.excluded_nodes)


def owners_of(nodes: Iterable[NodeView]) -> set[Address]:
    """Whose they are."""
    return {node.owner for node in nodes}


def taken_owners(request: WaitingRequest, kept: Iterable[Route]) -> set[Address]:
    """Whose nodes cannot be new to a quorum: nobody has two of its votes."""
    return {*request.tried_owners, *(route.node.owner for route in kept)}


def _of_different_owners(routes: Iterable[Route], taken: set[Address], wanted: int) -> list[Route]:
    """The first of these routes whose nodes have owners of their own, at most as many as are wanted."""
    chosen: list[Route] = []
    for route in routes:
        owners = taken | {each.node.owner for each in chosen}
        if len(chosen) < wanted and route.node.owner not in owners:
            chosen.append(route)
    return chosen


def offer_of(request: WaitingRequest, node: NodeView) -> Offer | None:
    """What a node asks for the request's model."""
    return next((offer for offer in node.offers if offer.model_id == request.model_id), None)


def _cannot_prove(request: WaitingRequest, node: NodeView) -> bool:
    return request.verifier not in (ZERO_ADDRESS, *node.verifiers)


def reward_of(request: WaitingRequest, node: NodeView) -> int:
    """What a node asks for the request; 0 when it does not offer the model."""
    offer = offer_of(request, node)
    return reward_wei(offer.price, request.prompt_bytes, request.max_output_tokens) if offer else 0
