"""Laws of the reference route and its cost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.reference import ReferenceNode, ReferenceRequest, ReferenceRoute, find_route

REQUEST = ReferenceRequest(
    id="request",
    model_id="llama-13b",
    priority_fee_wei=10**16,
    submitted_at_ms=0,
    deadline_ms=60_000,
    required_memory_mb=4_096,
    batchable=True,
)
NODE = ReferenceNode(
    id="node",
    supported_models=frozenset({"gpt-2", "llama-13b", "custom"}),
    free_memory_mb=8_192,
    in_flight=2,
    max_in_flight=4,
    avg_latency_ms=1_000.0,
)
GAS_PRICE_GWEI = 30.0

gas_prices_gwei = st.just(0.0) | st.floats(1e-9, 1e6)  # one wei and more
latencies_ms = st.just(0.0) | st.floats(1e-6, 1e7)
in_flight_counts = st.integers(0, 1_000)


def route_over(node: ReferenceNode, request: ReferenceRequest = REQUEST) -> ReferenceRoute:
    route = find_route(request, node, GAS_PRICE_GWEI)
    assert route is not None
    return route


def test_route__known_numbers__are_reproduced() -> None:
    route = route_over(NODE)
    assert (route.node_id, route.can_batch) == ("node", True)
    assert route.estimated_latency_ms == 1_800
    assert route.gas_cost_eth == pytest.approx(150_000 / 3 * 30e-9)
    assert route.total_cost_eth == pytest.approx(150_000 / 3 * 30e-9 + 1.8 * 10 * 30e-9)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(replace(NODE, supported_models=frozenset({"gpt-2"})), id="other-model"),
        pytest.param(replace(NODE, supported_models=frozenset()), id="no-model"),
        pytest.param(replace(NODE, free_memory_mb=4_095), id="memory-one-short"),
        pytest.param(replace(NODE, in_flight=4), id="full"),
        pytest.param(replace(NODE, in_flight=5), id="over-full"),
        pytest.param(replace(NODE, in_flight=0, max_in_flight=0), id="no-places"),
    ],
)
def test_find_route__node_cannot_serve__is_none(node: ReferenceNode) -> None:
    assert find_route(REQUEST, node, GAS_PRICE_GWEI) is None


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(replace(NODE, free_memory_mb=4_096), id="exact-memory"),
        pytest.param(replace(NODE, in_flight=3), id="last-place"),
        pytest.param(replace(NODE, avg_latency_ms=1e9), id="too-slow-for-the-deadline"),
    ],
)
def test_find_route__node_just_can__is_a_route(node: ReferenceNode) -> None:
    assert find_route(REQUEST, node, GAS_PRICE_GWEI) is not None


@pytest.mark.parametrize(("model_id", "latency_ms"), [("gpt-2", 300), ("custom", 1_000)])
def test_latency__model__is_scaled_by_its_complexity(model_id: str, latency_ms: int) -> None:
    assert route_over(NODE, replace(REQUEST, model_id=model_id)).estimated_latency_ms == latency_ms


@given(latencies_ms, latencies_ms)
def test_cost_is_monotone_in_latency(latency_ms: float, other_ms: float) -> None:
    fast, slow = sorted((latency_ms, other_ms))
    fast_route = route_over(replace(NODE, avg_latency_ms=fast))
    slow_route = route_over(replace(NODE, avg_latency_ms=slow))
    assert fast_route.gas_cost_eth == slow_route.gas_cost_eth
    assert fast_route.total_cost_eth <= slow_route.total_cost_eth


@given(gas_prices_gwei, latencies_ms, st.integers(0, 3))
def test_cost_is_proportional_to_the_gas_price(price_gwei: float, latency_ms: float, in_flight: int) -> None:
    node = replace(NODE, avg_latency_ms=latency_ms, in_flight=in_flight)
    route, doubled = find_route(REQUEST, node, price_gwei), find_route(REQUEST, node, 2 * price_gwei)
    assert route is not None
    assert doubled is not None
    assert doubled.total_cost_eth == 2 * route.total_cost_eth


@given(in_flight_counts)
def test_gas_is_shared_by_batchable_requests_on_a_busy_node_only(in_flight: int) -> None:
    node = replace(NODE, in_flight=in_flight, max_in_flight=in_flight + 1)
    alone = route_over(node, replace(REQUEST, batchable=False))
    shared = route_over(node)
    assert alone.gas_cost_eth == pytest.approx(150_000 * GAS_PRICE_GWEI * 1e-9)
    assert alone.can_batch is False
    assert shared.can_batch is (in_flight > 0)
    assert shared.gas_cost_eth * (in_flight + 1) == pytest.approx(alone.gas_cost_eth)


@pytest.mark.parametrize("gas_price_gwei", [math.nan, math.inf, -1.0])
def test_find_route__impossible_gas_price__is_refused(gas_price_gwei: float) -> None:
    with pytest.raises(InvalidInput, match="gas_price_gwei"):
        find_route(REQUEST, NODE, gas_price_gwei)


@pytest.mark.parametrize("avg_latency_ms", [math.nan, math.inf, -1.0])
def test_node__impossible_latency__is_refused(avg_latency_ms: float) -> None:
    with pytest.raises(InvalidInput, match="avg_latency_ms"):
        replace(NODE, avg_latency_ms=avg_latency_ms)


def test_node__negative_in_flight__is_refused() -> None:
    with pytest.raises(InvalidInput, match="in_flight"):
        replace(NODE, in_flight=-1)
