"""The reference cycle: highest score first, each request to its cheapest node that is still unused.

Source: `tests/vectors/reference/schedule_round.json`. No vector holds a tie. Here ties keep the order of
the input, as a stable sort and a strict comparison do in the original; where requests and nodes are given
by ascending id, as in a snapshot, ties therefore go by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.reference.priority import is_expired, score_of
from headrace.core.reference.route_cost import find_route
from headrace.core.reference.types import (
    ReferenceAssignment,
    ReferenceNode,
    ReferenceRequest,
    ReferenceRoute,
    ReferenceSchedule,
)


def plan_cycle(
    requests: Sequence[ReferenceRequest],
    nodes: Sequence[ReferenceNode],
    gas_price_gwei: float,
    now_ms: int,
) -> ReferenceSchedule:
    """Decide every request once, in O(requests × nodes). Ids are taken to be unique.

    A node takes at most one request a cycle, however many free places it has: a listed fault, kept.
    Raises InvalidInput if the gas price is negative, infinite or NaN and a route has to be costed.
    """
    too_late = tuple(request.id for request in requests if is_expired(request, now_ms))
    waiting = [request for request in requests if not is_expired(request, now_ms)]
    waiting.sort(key=lambda request: score_of(request, now_ms), reverse=True)
    unused = {node.id: node for node in nodes}
    assigned: list[ReferenceAssignment] = []
    skipped: list[str] = []
    for request in waiting:
        route = _cheapest_route(request, unused.values(), gas_price_gwei)
        if route is None:
            skipped.append(request.id)
        else:
            del unused[route.node_id]
            assigned.append(ReferenceAssignment(request.id, route.node_id))
    return ReferenceSchedule(tuple(assigned), tuple(skipped), too_late)


def _cheapest_route(
    request: ReferenceRequest, nodes: Iterable[ReferenceNode], gas_price_gwei: float
) -> ReferenceRoute | None:
    """The route of least total cost, the first of equals; None if no node can take the request."""
    routes = (find_route(request, node, gas_price_gwei) for node in nodes)
    return min(
        (route for route in routes if route is not None),
        key=lambda route: route.total_cost_eth,
        default=None,
    )
