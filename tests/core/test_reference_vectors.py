"""The `reference` policy against its vectors: relative error ≤ 1e-9; integers, orders and lists exactly.

The files say worker, job and expired where the project says node, in flight and too late; the functions
at the top translate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.core.reference import (
    ReferenceAssignment,
    ReferenceNode,
    ReferenceRequest,
    ReferenceRoute,
    ReferenceSchedule,
    StrictLanes,
    find_route,
    plan_cycle,
    score_of,
)
from headrace.core.types import Lane

Entry = Mapping[str, Any]

RELATIVE_TOLERANCE = 1e-9
LANE_OF = {"H": Lane.REALTIME, "L": Lane.BULK}


def request_from(entry: Entry) -> ReferenceRequest:
    return ReferenceRequest(
        id=entry["id"],
        model_id=entry["model_id"],
        priority_fee_wei=int(entry["priority_fee_wei"]),
        submitted_at_ms=entry["submitted_at_ms"],
        deadline_ms=entry["deadline_ms"],
        required_memory_mb=entry["required_memory_mb"],
        batchable=entry["batchable"],
    )


def node_from(worker: Entry) -> ReferenceNode:
    return ReferenceNode(
        id=worker["id"],
        supported_models=frozenset(worker["supported_models"]),
        free_memory_mb=worker["free_memory_mb"],
        in_flight=worker["active_jobs"],
        max_in_flight=worker["max_jobs"],
        avg_latency_ms=worker["avg_latency_ms"],
    )


def route_from(route: Entry) -> ReferenceRoute:
    return ReferenceRoute(
        node_id=route["worker_id"],
        estimated_latency_ms=route["estimated_latency_ms"],
        gas_cost_eth=route["gas_cost_eth"],
        total_cost_eth=route["total_cost_eth"],
        can_batch=route["can_batch"],
    )


def schedule_from(result: Entry) -> ReferenceSchedule:
    pairs = [(pair["request_id"], pair["worker_id"]) for pair in result["assigned"]]
    return ReferenceSchedule(
        assigned=tuple(ReferenceAssignment(request_id, node_id) for request_id, node_id in pairs),
        skipped=tuple(result["skipped"]),
        too_late=tuple(result["expired"]),
    )


def is_near(actual: float, expected: float) -> bool:
    return math.isclose(actual, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=0.0)


def replay_lanes(operations: list[str]) -> list[str]:
    """What each `take` gave and which arrivals were refused; items are numbered by letter, refused ones too."""
    lanes: StrictLanes[str] = StrictLanes()
    arrivals: Counter[str] = Counter()
    taken: list[str] = []
    for operation in operations:
        if operation == "take":
            taken.append(lanes.take() or "idle")
            continue
        item = f"{operation}{arrivals[operation]}"
        arrivals[operation] += 1
        if lanes.offer(item, LANE_OF[operation]) is None:
            taken.append(f"reject:{item}")
    return taken


def describe_score(entry: Entry) -> str:
    return f"{entry['request']['id']}-scores-{entry['score']:.6g}"


def describe_route(entry: Entry) -> str:
    outcome = "no-route" if entry["route"] is None else "route"
    return f"{entry['request']['id']}-over-{entry['worker']['id']}-{outcome}"


def describe_cycle(entry: Entry) -> str:
    return f"{len(entry['requests'])}-requests-{len(entry['workers'])}-nodes"


def describe_lanes(entry: Entry) -> str:
    return f"{len(entry['operations'])}-operations"


@pytest.mark.vectors("priority.json", describe=describe_score)
def test_score__vector(entry: Entry) -> None:
    score = score_of(request_from(entry["request"]), entry["now_ms"])
    assert is_near(score, entry["score"]), f"{score!r} instead of {entry['score']!r}"


@pytest.mark.vectors("route_cost.json", describe=describe_route)
def test_route__vector(entry: Entry) -> None:
    route = find_route(request_from(entry["request"]), node_from(entry["worker"]), entry["gas_price_gwei"])
    if entry["route"] is None:
        assert route is None
        return
    assert route is not None
    expected = route_from(entry["route"])
    assert (route.node_id, route.can_batch) == (expected.node_id, expected.can_batch)
    assert is_near(route.estimated_latency_ms, expected.estimated_latency_ms)
    assert is_near(route.gas_cost_eth, expected.gas_cost_eth)
    assert is_near(route.total_cost_eth, expected.total_cost_eth)


@pytest.mark.vectors("schedule_round.json", describe=describe_cycle)
def test_cycle__vector(entry: Entry) -> None:
    schedule = plan_cycle(
        [request_from(request) for request in entry["requests"]],
        [node_from(worker) for worker in entry["workers"]],
        entry["gas_price_gwei"],
        entry["now_ms"],
    )
    assert schedule == schedule_from(entry["result"])


@pytest.mark.vectors("dual_queue.json", describe=describe_lanes)
def test_lanes__vector(entry: Entry) -> None:
    assert replay_lanes(entry["operations"]) == entry["taken"]
