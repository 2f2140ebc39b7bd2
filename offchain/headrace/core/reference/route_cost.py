"""The reference route: three filters, then gas plus delay in ether.

Source: `tests/vectors/reference/route_cost.json`. The deadline, the gas limit, the stake and the
completion rate play no part: a node that is too slow for the deadline still gets a route.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.core.errors import InvalidInput
from headrace.core.reference.types import ReferenceNode, ReferenceRequest, ReferenceRoute

SUBMISSION_GAS: Final = 150_000
"""Gas of one on-chain submission, whatever it carries."""

DELAY_GAS_PER_S: Final = 10
"""Gas that one second of delay is taken to cost; a listed fault: both terms move with the gas price."""

ETH_PER_GWEI: Final = 1e-9

COMPLEXITY: Final[Mapping[str, float]] = MappingProxyType(
    {
        "gpt-2": 0.3,
        "llama-7b": 1.0,
        "llama-13b": 1.8,
        "llama-70b": 5.0,
        "stable-diffusion-xl": 2.5,
        "whisper-large": 0.8,
    }
)
"""Latency of a model as a multiple of the node's average."""

UNKNOWN_COMPLEXITY: Final = 1.0


def find_route(request: ReferenceRequest, node: ReferenceNode, gas_price_gwei: float) -> ReferenceRoute | None:
    """The route of a request over a node at a gas price, or None if a filter excludes the node.

    Raises InvalidInput if the gas price is negative, infinite or NaN.
    """
    if not 0 <= gas_price_gwei < math.inf:
        raise InvalidInput(f"gas_price_gwei must be finite and not negative, got {gas_price_gwei}")
    if not _can_serve(request, node):
        return None
    latency_ms = node.avg_latency_ms * COMPLEXITY.get(request.model_id, UNKNOWN_COMPLEXITY)
    can_batch = request.batchable and node.in_flight > 0
    gas = SUBMISSION_GAS / (node.in_flight + 1) if can_batch else SUBMISSION_GAS
    # The order of these operations decides the last bit: it is the one that all vectors agree with.
    gas_cost_eth = gas * gas_price_gwei * ETH_PER_GWEI
    delay_cost_eth = latency_ms / 1000 * (gas_price_gwei * ETH_PER_GWEI * DELAY_GAS_PER_S)
    return ReferenceRoute(
        node_id=node.id,
        estimated_latency_ms=latency_ms,
        gas_cost_eth=gas_cost_eth,
        total_cost_eth=gas_cost_eth + delay_cost_eth,
        can_batch=can_batch,
    )


def _can_serve(request: ReferenceRequest, node: ReferenceNode) -> bool:
    """The filters: the node has the model, the memory (an exact fit is enough) and a free place."""
    return (
        request.model_id in node.supported_models
        and node.free_memory_mb >= request.required_memory_mb
        and node.in_flight < node.max_in_flight
    )
