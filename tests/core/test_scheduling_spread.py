"""Policy `spread`: the reference's order and filters, nodes filled up to their free places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given

from headrace.core.scheduling import CycleInputs, CyclePlan, Policy, plan_cycle
from headrace.core.types import DecisionKind, Reason
from tests.core.strategies import address_number, cycle_inputs, hash_number
from tests.core.test_scheduling import cycle, node, offer, waiting

SPREAD = Policy(name="spread")


def spread(inputs: CycleInputs, **fields: Any) -> CyclePlan:
    return plan_cycle(replace(inputs, policy=replace(inputs.policy, name="spread"), **fields))


def given_to(plan: CyclePlan) -> Counter[str]:
    return Counter(planned.decision.node for planned in plan.of_kind(DecisionKind.ASSIGNED))


@given(cycle_inputs())
def test_spread__a_node__is_never_given_more_than_its_free_places(inputs: CycleInputs) -> None:
    views = {view.node: view for view in inputs.nodes}
    kept = {key for request in inputs.requests for key in request.kept_nodes}
    for key, count in given_to(spread(inputs)).items():
        assert key in kept or count <= views[key].max_in_flight - views[key].in_flight


@given(cycle_inputs())
def test_spread__a_request_that_is_left__finds_no_place_in_what_is_left(inputs: CycleInputs) -> None:
    """Nobody is skipped for taken nodes while one of them could have taken it when its turn came."""
    plan = spread(inputs)
    requests = {request.request_id: request for request in inputs.requests}
    taken: Counter[str] = Counter()
    for planned in plan.decisions:
        decision, request = planned.decision, requests[planned.decision.request_id]
        if decision.reason is Reason.LOWEST_COST:
            taken[decision.node] += 1
        if decision.kind is not DecisionKind.SKIPPED or decision.reason is Reason.LANE_FULL:
            continue
        left = tuple(replace(view, in_flight=view.in_flight + taken[view.node]) for view in inputs.nodes)
        room = replace(inputs.policy, name="spread", realtime_capacity=100, bulk_capacity=100)
        alone = plan_cycle(replace(inputs, requests=(request,), nodes=left, policy=room)).decisions[0].decision
        assert alone.kind is DecisionKind.SKIPPED


def test_spread__two_alike__share_the_work() -> None:
    nodes = [node(8, in_flight=0, max_in_flight=16), node(9, in_flight=0, max_in_flight=16)]
    plan = plan_cycle(cycle([waiting(number) for number in range(1, 11)], nodes, policy=SPREAD))
    assert given_to(plan) == {address_number(8): 5, address_number(9): 5}


def test_spread__more_than_all_can_take__waits_for_the_next_turn() -> None:
    nodes = [node(8, in_flight=2, max_in_flight=4), node(9, in_flight=0, max_in_flight=1)]
    plan = plan_cycle(cycle([waiting(number) for number in range(1, 6)], nodes, policy=SPREAD))
    assert given_to(plan) == {address_number(8): 2, address_number(9): 1}
    assert [planned.decision.reason for planned in plan.of_kind(DecisionKind.SKIPPED)] == [Reason.NODES_TAKEN] * 2


def test_spread__of_two_as_fast__the_cheaper_is_taken_until_its_load_costs_more() -> None:
    cheap, dear = offer(thousand=10**14), offer(thousand=10**14 + 10**12)
    nodes = [
        node(8, offers=(dear,), in_flight=0, max_in_flight=10, avg_latency_ms=1_000),
        node(9, offers=(cheap,), in_flight=0, max_in_flight=10, avg_latency_ms=1_000),
    ]
    plan = plan_cycle(cycle([waiting(number) for number in range(1, 11)], nodes, policy=SPREAD))
    assert plan.decisions[0].decision.node == address_number(9)
    assert given_to(plan)[address_number(9)] > given_to(plan)[address_number(8)] > 0


def test_spread__a_higher_fee__pays_for_the_faster_node() -> None:
    nodes = [
        node(8, offers=(offer(thousand=2 * 10**14),), avg_latency_ms=100),
        node(9, offers=(offer(thousand=10**14),), avg_latency_ms=20_000),
    ]
    poor, rich = waiting(1, priority_fee_wei=0), waiting(2, priority_fee_wei=10**18)
    for request, expected in ((poor, 9), (rich, 8)):
        plan = plan_cycle(cycle([request], nodes, policy=SPREAD))
        assert plan.decisions[0].decision.node == address_number(expected), hash_number(expected)
