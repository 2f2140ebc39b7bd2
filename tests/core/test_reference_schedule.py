"""Laws of the reference cycle."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.reference import (
    ReferenceNode,
    ReferenceRequest,
    ReferenceSchedule,
    find_route,
    plan_cycle,
    score_of,
)

NOW_MS = 1_800_000_000_000
GAS_PRICE_GWEI = 30.0
MODELS = ("gpt-2", "llama-7b", "llama-70b")

REQUEST = ReferenceRequest(
    id="request",
    model_id="llama-7b",
    priority_fee_wei=10**16,
    submitted_at_ms=NOW_MS - 1_000,
    deadline_ms=NOW_MS + 60_000,
    required_memory_mb=512,
    batchable=True,
)
NODE = ReferenceNode(
    id="node",
    supported_models=frozenset(MODELS),
    free_memory_mb=8_192,
    in_flight=0,
    max_in_flight=8,
    avg_latency_ms=1_000.0,
)

request_lists = st.lists(
    st.builds(
        ReferenceRequest,
        id=st.uuids().map(str),
        model_id=st.sampled_from(MODELS),
        priority_fee_wei=st.integers(0, 3).map(lambda units: units * 10**16),
        submitted_at_ms=st.integers(NOW_MS - 3_000, NOW_MS),
        deadline_ms=st.integers(NOW_MS - 2_000, NOW_MS + 40_000),
        required_memory_mb=st.integers(0, 4),
        batchable=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda request: request.id,
)
node_lists = st.lists(
    st.builds(
        ReferenceNode,
        id=st.uuids().map(str),
        supported_models=st.frozensets(st.sampled_from(MODELS)),
        free_memory_mb=st.integers(0, 4),
        in_flight=st.integers(0, 3),
        max_in_flight=st.integers(0, 4),
        avg_latency_ms=st.sampled_from([100.0, 200.0, 5_000.0]),
    ),
    max_size=6,
    unique_by=lambda node: node.id,
)


def plan(requests: list[ReferenceRequest], nodes: list[ReferenceNode]) -> ReferenceSchedule:
    return plan_cycle(requests, nodes, GAS_PRICE_GWEI, NOW_MS)


def test_cycle__nothing_given__decides_nothing() -> None:
    assert plan([], []) == ReferenceSchedule((), (), ())
    assert plan([], [NODE]) == ReferenceSchedule((), (), ())
    assert plan([REQUEST], []) == ReferenceSchedule((), ("request",), ())


def test_cycle__equal_scores__keep_the_order_of_the_input() -> None:
    requests = [replace(REQUEST, id=name) for name in ("r10", "r9", "r11")]
    schedule = plan(requests, [NODE])
    assert [pair.request_id for pair in schedule.assigned] == ["r10"]
    assert schedule.skipped == ("r9", "r11")


def test_cycle__equal_costs__take_the_first_node() -> None:
    nodes = [replace(NODE, id=name) for name in ("n10", "n9")]
    assert [pair.node_id for pair in plan([REQUEST], nodes).assigned] == ["n10"]


def test_cycle__free_places_left__still_one_assignment_a_node() -> None:
    schedule = plan([replace(REQUEST, id="a"), replace(REQUEST, id="b")], [NODE])
    assert (len(schedule.assigned), schedule.skipped) == (1, ("b",))


def test_cycle__deadline_is_now__is_too_late() -> None:
    at_deadline = replace(REQUEST, id="at", deadline_ms=NOW_MS)
    just_before = replace(REQUEST, id="before", deadline_ms=NOW_MS + 1)
    schedule = plan([at_deadline, just_before], [NODE])
    assert schedule.too_late == ("at",)
    assert [pair.request_id for pair in schedule.assigned] == ["before"]


@given(request_lists, node_lists)
def test_every_request_is_decided_exactly_once(requests: list[ReferenceRequest], nodes: list[ReferenceNode]) -> None:
    schedule = plan(requests, nodes)
    decided = [pair.request_id for pair in schedule.assigned]
    decided += [*schedule.skipped, *schedule.too_late]
    assert sorted(decided) == sorted(request.id for request in requests)


@given(request_lists, node_lists)
def test_too_late_is_exactly_what_expired_in_the_order_of_the_input(
    requests: list[ReferenceRequest], nodes: list[ReferenceNode]
) -> None:
    expired = tuple(request.id for request in requests if score_of(request, NOW_MS) < 0)
    assert plan(requests, nodes).too_late == expired


@given(request_lists, node_lists)
def test_assigned_and_skipped_are_ordered_by_score(
    requests: list[ReferenceRequest], nodes: list[ReferenceNode]
) -> None:
    schedule = plan(requests, nodes)
    score = {request.id: score_of(request, NOW_MS) for request in requests}
    for ids in ([pair.request_id for pair in schedule.assigned], list(schedule.skipped)):
        assert ids == sorted(ids, key=lambda request_id: -score[request_id])


@given(request_lists, node_lists)
def test_each_request_in_turn_gets_the_cheapest_node_left(
    requests: list[ReferenceRequest], nodes: list[ReferenceNode]
) -> None:
    schedule = plan(requests, nodes)
    node_of = {pair.request_id: pair.node_id for pair in schedule.assigned}
    unused = {node.id: node for node in nodes}
    live = [request for request in requests if request.id not in schedule.too_late]
    for request in sorted(live, key=lambda request: -score_of(request, NOW_MS)):
        routes = [find_route(request, node, GAS_PRICE_GWEI) for node in unused.values()]
        costs = {route.node_id: route.total_cost_eth for route in routes if route is not None}
        node_id = node_of.get(request.id)
        assert (node_id is None) is (not costs)
        if node_id is not None:
            assert costs[node_id] == min(costs.values())
            del unused[node_id]


@given(request_lists, node_lists, st.randoms(use_true_random=False))
def test_the_order_of_the_input_matters_only_for_ties(
    requests: list[ReferenceRequest], nodes: list[ReferenceNode], rng: Random
) -> None:
    distinct = list({score_of(request, NOW_MS): request for request in requests}.values())
    shuffled = list(distinct)
    rng.shuffle(shuffled)
    schedule, other = plan(distinct, nodes), plan(shuffled, nodes)
    assert (schedule.assigned, schedule.skipped) == (other.assigned, other.skipped)
