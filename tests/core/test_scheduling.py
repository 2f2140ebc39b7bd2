from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.fees import charged_gas, charged_gas_price_wei, reward_wei
from headrace.core.reference import ReferenceNode, ReferenceRequest, find_route, score_e9, score_of
from headrace.core.reference import plan_cycle as plan_reference
from headrace.core.scheduling import (
    CycleInputs,
    CyclePlan,
    NodeView,
    Offer,
    PlannedDecision,
    Policy,
    WaitingRequest,
    plan_cycle,
)
from headrace.core.types import ZERO_ADDRESS, DecisionKind, GasQuote, Lane, Price, Reason
from tests.core.strategies import (
    GWEI,
    NOW_MS,
    NOW_S,
    VERIFIER,
    address_number,
    cycle_inputs,
    hash_number,
    model_id,
    unrestrained,
)
from tests.vectors.protocol import generate

MODEL = "llama-7b"
NOTHING_BITES: dict[str, Any] = {"settled_count": 10**6, "joined_at_s": 0, "heartbeat_at_ms": NOW_MS}


def waiting(number: int, **fields: Any) -> WaitingRequest:
    values = {"model_id": model_id(MODEL), "model_name": MODEL, "included_at_s": NOW_S, "gas_budget_wei": 10**17}
    return generate.waiting_request(hash_number(number), **values | fields)


def node(number: int, **fields: Any) -> NodeView:
    return generate.node_view(address_number(number), **{"offers": (offer(),), "heartbeat_at_ms": NOW_MS} | fields)


def offer(kib: int = 10**12, thousand: int = 10**14) -> Offer:
    return Offer(model_id(MODEL), MODEL, Price(kib, thousand))


def cycle(requests: list[WaitingRequest], nodes: list[NodeView], **fields: Any) -> CycleInputs:
    return generate.cycle_inputs(requests, nodes, **{"now_ms": NOW_MS} | fields)


def reasons(inputs: CycleInputs) -> dict[str, Reason]:
    return {p.decision.request_id: p.decision.reason for p in plan_cycle(inputs).decisions}


def only(inputs: CycleInputs) -> PlannedDecision:
    (planned,) = plan_cycle(inputs).decisions
    return planned


def as_reference(request: WaitingRequest) -> ReferenceRequest:
    return ReferenceRequest(
        id=request.request_id,
        model_id=request.model_name,
        priority_fee_wei=request.priority_fee_wei,
        submitted_at_ms=request.included_at_s * 1000,
        deadline_ms=request.deadline_s * 1000,
        required_memory_mb=request.required_memory_mb,
        batchable=request.batchable,
    )


def as_reference_node(view: NodeView) -> ReferenceNode:
    return ReferenceNode(
        id=view.node,
        supported_models=frozenset(each.model_name for each in view.offers),
        free_memory_mb=view.free_memory_mb,
        in_flight=view.in_flight,
        max_in_flight=view.max_in_flight,
        avg_latency_ms=view.avg_latency_ms,
    )


def triple(plan: CyclePlan) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """What the reference calls assigned, skipped and expired."""
    assigned = [(p.decision.request_id, p.decision.node) for p in plan.of_kind(DecisionKind.ASSIGNED)]
    skipped = [p.decision.request_id for p in plan.of_kind(DecisionKind.SKIPPED)]
    return assigned, skipped, [p.decision.request_id for p in plan.of_kind(DecisionKind.TOO_LATE)]


# Against the reference


@given(cycle_inputs(max_requests=10), st.sampled_from(Lane))
def test_plan__one_lane_and_no_filter_of_the_protocol__is_the_reference(inputs: CycleInputs, lane: Lane) -> None:
    inputs = replace(
        inputs,
        policy=Policy(),
        requests=tuple(replace(each, lane=lane, **unrestrained(each)) for each in inputs.requests),
        nodes=tuple(replace(each, **NOTHING_BITES) for each in inputs.nodes),
    )
    expected = plan_reference(
        [as_reference(each) for each in inputs.requests],
        [as_reference_node(each) for each in inputs.nodes],
        inputs.gas.price_wei / GWEI,
        inputs.now_ms,
    )
    pairs = [(pair.request_id, pair.node_id) for pair in expected.assigned]
    assert triple(plan_cycle(inputs)) == (pairs, list(expected.skipped), list(expected.too_late))


@pytest.mark.vectors("schedule_round.json", describe=lambda entry: f"{len(entry['requests'])}-requests")
@pytest.mark.parametrize("lane", list(Lane))
def test_plan__reference_vector(entry: dict[str, Any], lane: Lane) -> None:
    id_of = {request["id"]: hash_number(i) for i, request in enumerate(entry["requests"], 1)}
    key_of = {worker["id"]: address_number(i) for i, worker in enumerate(entry["workers"], 1)}
    names = {request["model_id"] for request in entry["requests"]}
    names |= {name for worker in entry["workers"] for name in worker["supported_models"]}
    number_of = {name: hash_number(i) for i, name in enumerate(sorted(names), 1)}
    requests = [
        replace(
            waiting(0, lane=lane, max_reward_wei=10**18, gas_budget_wei=10**24),
            request_id=id_of[request["id"]],
            model_id=number_of[request["model_id"]],
            model_name=request["model_id"],
            priority_fee_wei=int(request["priority_fee_wei"]),
            # The chain's times are whole seconds, those of the vectors are not; the arithmetic is exact for both.
            included_at_s=Fraction(request["submitted_at_ms"], 1000),
            deadline_s=Fraction(request["deadline_ms"], 1000),
            required_memory_mb=request["required_memory_mb"],
            batchable=request["batchable"],
        )
        for request in entry["requests"]
    ]
    nodes = [
        replace(
            node(0),
            node=key_of[worker["id"]],
            offers=tuple(Offer(number_of[name], name, Price(1, 1)) for name in worker["supported_models"]),
            free_memory_mb=worker["free_memory_mb"],
            in_flight=worker["active_jobs"],
            max_in_flight=worker["max_jobs"],
            avg_latency_ms=worker["avg_latency_ms"],
            heartbeat_at_ms=entry["now_ms"],
        )
        for worker in entry["workers"]
    ]
    gas = GasQuote(round(entry["gas_price_gwei"] * GWEI), 0)
    assigned, skipped, too_late = triple(plan_cycle(cycle(requests, nodes, now_ms=entry["now_ms"], gas=gas)))
    result = entry["result"]
    assert assigned == [(id_of[pair["request_id"]], key_of[pair["worker_id"]]) for pair in result["assigned"]]
    assert skipped == [id_of[name] for name in result["skipped"]]
    assert too_late == [id_of[name] for name in result["expired"]]


# Laws


@given(cycle_inputs())
def test_plan__every_request__is_decided_exactly_once_and_a_quorum_whole_or_not_at_all(inputs: CycleInputs) -> None:
    decided = [p.decision for p in plan_cycle(inputs).decisions]
    assert {decision.request_id for decision in decided} == {request.request_id for request in inputs.requests}
    for request in inputs.requests:
        of_it = [decision for decision in decided if decision.request_id == request.request_id]
        assert len(of_it) == (request.k if request.k and of_it[0].kind is DecisionKind.ASSIGNED else 1)
        assert len({(decision.kind, decision.reward_wei, decision.supersedes_round) for decision in of_it}) == 1


@given(cycle_inputs())
def test_plan__a_node__is_given_at_most_one_new_request(inputs: CycleInputs) -> None:
    assigned = [p.decision for p in plan_cycle(inputs).of_kind(DecisionKind.ASSIGNED)]
    nodes = [decision.node for decision in assigned if decision.reason is not Reason.QUORUM_KEPT]
    assert len(nodes) == len(set(nodes))


@given(cycle_inputs())
def test_plan__a_quorum__has_nodes_of_different_owners_and_never_more_than_n(inputs: CycleInputs) -> None:
    views = {view.node: view for view in inputs.nodes}
    for request in inputs.requests:
        listed = [p.decision for p in plan_cycle(inputs).decisions if p.decision.request_id == request.request_id]
        if not request.k or listed[0].kind is not DecisionKind.ASSIGNED:
            continue
        kept = {decision.node for decision in listed if decision.reason is Reason.QUORUM_KEPT}
        spares = {decision.node for decision in listed if decision.reason is Reason.LOWEST_COST}
        assert len({views[node].owner for node in kept | spares}) == request.k == len(kept | spares)
        assert kept <= set(request.kept_nodes)
        assert not spares & {*request.kept_nodes, *request.excluded_nodes}
        assert not {views[node].owner for node in spares} & set(request.tried_owners)
        assert len({*request.kept_nodes, *request.excluded_nodes, *spares}) <= request.n
        assert request.deterministic
        assert request.supersedes_round < inputs.round


@given(cycle_inputs())
def test_plan__an_assignment__breaks_no_rule(inputs: CycleInputs) -> None:
    requests = {request.request_id: request for request in inputs.requests}
    views = {view.node: view for view in inputs.nodes}
    terms, policy = inputs.terms, inputs.policy
    for planned in plan_cycle(inputs).of_kind(DecisionKind.ASSIGNED):
        decision = planned.decision
        request, view = requests[decision.request_id], views[decision.node]
        (price,) = (each.price for each in view.offers if each.model_id == request.model_id)
        own = reward_wei(price, request.prompt_bytes, request.max_output_tokens)
        assert decision.reward_wei >= own if request.k else decision.reward_wei == own
        assert decision.reward_wei * max(1, request.k) <= request.max_reward_wei
        assert decision.supersedes_round == request.supersedes_round
        assert view.node not in request.excluded_nodes
        if decision.reason is not Reason.QUORUM_KEPT:
            assert decision.reason is Reason.LOWEST_COST
            assert view.in_flight < view.max_in_flight
            assert view.free_memory_mb >= request.required_memory_mb
        assert inputs.now_ms - view.heartbeat_at_ms <= policy.heartbeat_timeout_ms
        assert request.deadline_s * 1000 > inputs.now_ms
        assert request.prompt_available
        assert request.assignments < policy.max_assignments * (2 if request.k else 1)
        gas = charged_gas(terms, policy.expected_batch_size if request.batchable else 1, 0, max(1, request.k))
        assert gas * charged_gas_price_wei(terms, inputs.gas) <= request.gas_budget_wei
        if view.settled_count < terms.probation_settled_count or view.joined_at_s + terms.probation_duration_s > NOW_S:
            assert decision.reward_wei <= terms.probation_max_reward_wei


@given(cycle_inputs())
def test_plan__score_and_costs__are_those_of_the_reference(inputs: CycleInputs) -> None:
    requests = {request.request_id: request for request in inputs.requests}
    views = {view.node: view for view in inputs.nodes}
    gwei = inputs.gas.price_wei / GWEI
    for planned in plan_cycle(inputs).decisions:
        decision, request = planned.decision, requests[planned.decision.request_id]
        assert planned.score_e9 == score_e9(score_of(as_reference(request), inputs.now_ms))
        assert (decision.node == ZERO_ADDRESS) is (decision.kind is not DecisionKind.ASSIGNED)
        if decision.reason is Reason.QUORUM_KEPT:
            assert planned.cost_wei == 0
            continue
        costs = {}
        for key in {decision.node, planned.runner_up} - {ZERO_ADDRESS}:
            route = find_route(as_reference(request), as_reference_node(views[key]), gwei)
            assert route is not None
            costs[key] = round(route.total_cost_eth * 10**18)
        assert planned.cost_wei == costs.get(decision.node, 0)
        assert planned.runner_up_cost_wei == costs.get(planned.runner_up, 0)
        # What a quorum passes over may be cheaper, and of an owner that it has already.
        assert request.k or planned.runner_up == ZERO_ADDRESS or planned.runner_up_cost_wei >= planned.cost_wei
        if decision.kind is not DecisionKind.ASSIGNED:
            assert (decision.reward_wei, decision.supersedes_round, planned.runner_up) == (0, 0, ZERO_ADDRESS)


@given(cycle_inputs())
def test_plan__a_skipped_request__had_no_node_when_its_turn_came(inputs: CycleInputs) -> None:
    """Taking away the nodes that were given before it, what is left cannot serve it either, and for a stated reason."""
    requests = {request.request_id: request for request in inputs.requests}
    given_away: set[str] = set()
    for planned in plan_cycle(inputs).decisions:
        decision, request = planned.decision, requests[planned.decision.request_id]
        if decision.reason is Reason.LOWEST_COST:
            given_away.add(decision.node)
        if decision.kind is not DecisionKind.SKIPPED or decision.reason is Reason.LANE_FULL:
            continue
        room = Policy(
            max_assignments=inputs.policy.max_assignments, expected_batch_size=inputs.policy.expected_batch_size
        )
        alone = replace(inputs, requests=(request,), policy=room)
        gone = given_away - set(request.kept_nodes)
        left = tuple(view for view in inputs.nodes if view.node not in gone)
        assert plan_cycle(replace(alone, nodes=left)).decisions[0].decision.kind is DecisionKind.SKIPPED
        with_all = plan_cycle(alone).decisions[0].decision
        assert (decision.reason is Reason.NODES_TAKEN) is (with_all.kind is DecisionKind.ASSIGNED)
        if decision.reason is not Reason.NODES_TAKEN:
            assert with_all.reason is decision.reason


@given(cycle_inputs(), st.randoms(use_true_random=False))
def test_plan__from_rows_in_any_order_sorted_by_id__is_the_same(inputs: CycleInputs, rng: Random) -> None:
    requests, nodes = list(inputs.requests), list(inputs.nodes)
    rng.shuffle(requests)
    rng.shuffle(nodes)
    shuffled = replace(
        inputs,
        requests=tuple(sorted(requests, key=lambda request: request.request_id)),
        nodes=tuple(sorted(nodes, key=lambda view: view.node)),
    )
    assert plan_cycle(shuffled) == plan_cycle(inputs) == plan_cycle(inputs)


def test_plan__equal_scores_and_costs__go_by_id() -> None:
    plan = plan_cycle(cycle([waiting(2), waiting(3), waiting(1)], [node(9), node(8)]))
    assert triple(plan)[:2] == (
        [(hash_number(1), address_number(8)), (hash_number(2), address_number(9))],
        [hash_number(3)],
    )
    assert [p.runner_up for p in plan.decisions] == [address_number(9), ZERO_ADDRESS, ZERO_ADDRESS]


# Reasons


def test_reason__nothing_waits__decides_nothing() -> None:
    assert plan_cycle(cycle([], [node(1)], lane_streak=7)) == CyclePlan((), 7)


MINIMAL: dict[Reason, tuple[dict[str, Any], dict[str, Any]]] = {
    Reason.LOWEST_COST: ({}, {}),
    Reason.NO_NODE_FOR_MODEL: ({"model_id": hash_number(99)}, {}),
    Reason.NODE_MEMORY: ({"required_memory_mb": 16_385}, {}),
    Reason.NODES_BUSY: ({}, {"in_flight": 4}),
    Reason.PRICE_ABOVE_MAX: ({"max_reward_wei": 2 * 10**12 + 10**14 - 1}, {}),
    Reason.GAS_BUDGET_SHORT: ({"gas_budget_wei": 27_250 * 8 * GWEI - 1}, {}),
    Reason.PROBATION: ({"prompt_bytes": 901 * 1024}, {"settled_count": 9}),
    Reason.NODES_EXCLUDED: ({"excluded_nodes": (address_number(1),)}, {}),
    Reason.ATTEMPTS_EXHAUSTED: ({"assignments": 3}, {}),
    Reason.PROMPT_MISSING: ({"prompt_available": False}, {}),
    Reason.NODES_SILENT: ({}, {"heartbeat_at_ms": NOW_MS - 15_001}),
    Reason.RELEASED: ({"released_until_s": NOW_S - 30}, {}),
    Reason.ANSWER_TOO_LONG: ({"callback_gas": 100_000, "answer_bytes": 125_345}, {}),
    Reason.NO_PROOF: ({"verifier": VERIFIER, "verifier_gas": 25_000}, {"verifiers": (address_number(9),)}),
    Reason.DEADLINE_PASSED: ({"deadline_s": NOW_S}, {}),
}
NEARLY: dict[Reason, tuple[dict[str, Any], dict[str, Any]]] = {
    Reason.NODE_MEMORY: ({"required_memory_mb": 16_384}, {}),
    Reason.NODES_BUSY: ({}, {"in_flight": 3}),
    Reason.PRICE_ABOVE_MAX: ({"max_reward_wei": 2 * 10**12 + 10**14}, {}),
    Reason.GAS_BUDGET_SHORT: ({"gas_budget_wei": 27_250 * 8 * GWEI}, {}),
    Reason.PROBATION: ({"prompt_bytes": 900 * 1024}, {"settled_count": 9}),
    Reason.NODES_EXCLUDED: ({"excluded_nodes": (address_number(2),)}, {}),
    Reason.ATTEMPTS_EXHAUSTED: ({"assignments": 2}, {}),
    Reason.NODES_SILENT: ({}, {"heartbeat_at_ms": NOW_MS - 15_000}),
    Reason.RELEASED: ({"released_until_s": NOW_S - 31}, {}),
    Reason.ANSWER_TOO_LONG: ({"callback_gas": 100_000, "answer_bytes": 125_344}, {}),
    Reason.NO_PROOF: ({"verifier": VERIFIER, "verifier_gas": 25_000}, {"verifiers": (address_number(9), VERIFIER)}),
    Reason.DEADLINE_PASSED: ({"deadline_s": NOW_S + 1}, {}),
}


@pytest.mark.parametrize("reason", MINIMAL, ids=lambda reason: reason.name.lower())
def test_reason__minimal_case(reason: Reason) -> None:
    request, view = MINIMAL[reason]
    decision = only(cycle([waiting(1, **{"max_reward_wei": 10**17} | request)], [node(1, **view)])).decision
    assert decision.reason is reason
    kinds = {Reason.LOWEST_COST: DecisionKind.ASSIGNED, Reason.DEADLINE_PASSED: DecisionKind.TOO_LATE}
    assert decision.kind is kinds.get(reason, DecisionKind.SKIPPED)


@pytest.mark.parametrize("reason", NEARLY, ids=lambda reason: reason.name.lower())
def test_reason__one_less__is_assigned(reason: Reason) -> None:
    request, view = NEARLY[reason]
    inputs = cycle([waiting(1, **{"max_reward_wei": 10**17} | request)], [node(1, **view)])
    assert only(inputs).decision.reason is Reason.LOWEST_COST


def test_reason__node_taken() -> None:
    inputs = cycle([waiting(1), waiting(2)], [node(1), node(2, in_flight=4)])
    assert reasons(inputs) == {hash_number(1): Reason.LOWEST_COST, hash_number(2): Reason.NODES_TAKEN}


def test_reason__lane_full() -> None:
    inputs = cycle([waiting(1), waiting(2)], [node(1)], policy=Policy(realtime_capacity=1, bulk_capacity=0))
    assert reasons(inputs) == {hash_number(1): Reason.LOWEST_COST, hash_number(2): Reason.LANE_FULL}


def test_streak__realtime_that_overflowed_into_bulk__counts_as_realtime() -> None:
    policy = Policy(realtime_capacity=1, realtime_streak=2)
    requests = [waiting(number, lane=Lane.REALTIME) for number in (1, 2, 3)]
    plan = plan_cycle(cycle(requests, [node(number) for number in (1, 2, 3)], policy=policy))
    # The third comes when it is bulk's turn, which starts anew: it is one realtime request in a row.
    assert plan.lane_streak == 1


def test_policy__unknown_name__is_refused_not_taken_for_another() -> None:
    with pytest.raises(InvalidInput, match="balanced"):
        plan_cycle(cycle([waiting(1)], [node(1)], policy=Policy(name="balanced")))


def test_policy__batches_of_nothing__are_refused() -> None:
    with pytest.raises(InvalidInput, match="expected_batch_size"):
        Policy(expected_batch_size=0)


def test_reason__no_nodes_at_all__is_no_node_for_the_model() -> None:
    assert only(cycle([waiting(1)], [])).decision.reason is Reason.NO_NODE_FOR_MODEL


def test_reason__every_one_but_two__has_a_minimal_case() -> None:
    tested = {*MINIMAL, Reason.NODES_TAKEN, Reason.LANE_FULL}
    tested |= {Reason.QUORUM_KEPT, Reason.OWNERS_TOO_FEW, Reason.NOT_DETERMINISTIC, Reason.ROUND_OF_QUORUM}
    # NONE is no reason; the reference takes any deadline that has not passed for feasible, and asks for no stake.
    of_balanced = {Reason.EXPLORATION, Reason.NODES_TOO_SLOW, Reason.STAKE_SHORT}
    assert set(Reason) - tested == {Reason.NONE, Reason.DEADLINE_INFEASIBLE} | of_balanced


def test_reason__several_nodes__is_that_of_the_node_that_came_furthest() -> None:
    nodes = [node(1, heartbeat_at_ms=0), node(2, in_flight=4), node(3, free_memory_mb=0), node(4, offers=())]
    assert only(cycle([waiting(1)], nodes)).decision.reason is Reason.NODES_BUSY
    assert only(cycle([waiting(1)], [nodes[0], nodes[2], nodes[3]])).decision.reason is Reason.NODE_MEMORY
    assert only(cycle([waiting(1)], [nodes[0], nodes[3]])).decision.reason is Reason.NODES_SILENT


def test_gas_budget__batchable__needs_its_share_of_a_batch_only() -> None:
    single, shared = 106_000 * 8 * GWEI, (90_000 // 8 + 16_000) * 8 * GWEI
    for batchable, needed in ((False, single), (True, shared)):
        request = waiting(1, batchable=batchable, gas_budget_wei=needed)
        assert only(cycle([request], [node(1)])).decision.reason is Reason.LOWEST_COST
        short = replace(request, gas_budget_wei=needed - 1)
        assert only(cycle([short], [node(1)])).decision.reason is Reason.GAS_BUDGET_SHORT


def test_gas_budget__callback_verifier_and_the_bytes_for_it__are_paid_for_too() -> None:
    extras = {"callback_gas": 300_000, "answer_bytes": 1_000, "verifier": VERIFIER, "verifier_gas": 25_000}
    gas = 90_000 // 8 + 16_000 + 40 * 1_000 + 300_000 + 10_000 + 25_000
    request = waiting(1, gas_budget_wei=gas * 8 * GWEI, **extras)
    prover = node(1, verifiers=(VERIFIER,))
    assert only(cycle([request], [prover])).decision.reason is Reason.LOWEST_COST
    short = replace(request, gas_budget_wei=request.gas_budget_wei - 1)
    assert only(cycle([short], [prover])).decision.reason is Reason.GAS_BUDGET_SHORT


def test_gas_budget__tip_above_the_cap__counts_as_the_cap() -> None:
    request = waiting(1, gas_budget_wei=27_250 * 9 * GWEI)
    quote = GasQuote(7 * GWEI, 50 * GWEI)
    assert only(cycle([request], [node(1)], gas=quote)).decision.reason is Reason.LOWEST_COST


def test_probation__young_node_with_many_results__may_earn_little_only() -> None:
    dear = waiting(1, prompt_bytes=901 * 1024, max_reward_wei=10**17)
    joined = {"joined_at_s": NOW_S - 86_399, "settled_count": 1000}
    assert only(cycle([dear], [node(1, **joined)])).decision.reason is Reason.PROBATION
    assert only(cycle([dear], [node(1, **joined | {"joined_at_s": NOW_S - 86_400})])).decision.reason == 1
    assert only(cycle([replace(dear, prompt_bytes=1)], [node(1, **joined)])).decision.reason == 1


# Quorums


def quorum(number: int = 1, k: int = 2, n: int = 3, **fields: Any) -> WaitingRequest:
    return waiting(number, **{"k": k, "n": n, "max_reward_wei": 10**17, "gas_budget_wei": 10**18} | fields)


def again(*kept: int, dropped: tuple[int, ...] = (9,), **fields: Any) -> WaitingRequest:
    """Listed in round 11 with these nodes and those that were dropped; the owner of a node has its number."""
    tried = {
        "kept_nodes": tuple(address_number(each) for each in kept),
        "excluded_nodes": tuple(address_number(each) for each in dropped),
        "tried_owners": tuple(sorted(address_number(each) for each in (*kept, *dropped))),
    }
    return quorum(**{"assignments": 1, "supersedes_round": 11} | tried | fields)


def listed(inputs: CycleInputs) -> list[tuple[int, Reason, int]]:
    """Node, reason and reward of each decision, in the order of the plan."""
    decisions = [p.decision for p in plan_cycle(inputs).decisions]
    return [(int(d.node, 16), d.reason, d.reward_wei) for d in decisions]


def test_quorum__its_k_cheapest_nodes__are_paid_the_highest_of_their_prices() -> None:
    nodes = [node(1, offers=(offer(thousand=300),)), node(2, offers=(offer(thousand=100),)), node(3, in_flight=3)]
    reward = 2 * 10**12 + 300
    # Cost is gas and delay: the third is as quick, but shares its gas with what is in flight there.
    assert listed(cycle([quorum()], nodes[:2])) == [(1, Reason.LOWEST_COST, reward), (2, Reason.LOWEST_COST, reward)]


def test_quorum__nodes_of_one_owner__count_as_one() -> None:
    nodes = [node(1, owner=address_number(7)), node(2, owner=address_number(7)), node(3)]
    assert [each[0] for each in listed(cycle([quorum()], nodes))] == [1, 3]
    assert listed(cycle([quorum()], nodes[:2])) == [(0, Reason.OWNERS_TOO_FEW, 0)]
    assert listed(cycle([quorum(k=3)], nodes)) == [(0, Reason.OWNERS_TOO_FEW, 0)]


def test_quorum__reward_of_all_together__is_held_against_the_maximum() -> None:
    price = 2 * 10**12 + 10**14
    assert len(listed(cycle([quorum(max_reward_wei=2 * price)], [node(1), node(2)]))) == 2
    short = cycle([quorum(max_reward_wei=2 * price - 1)], [node(1), node(2)])
    assert listed(short) == [(0, Reason.PRICE_ABOVE_MAX, 0)]


def test_quorum__gas_of_its_further_nodes__is_held_against_the_budget() -> None:
    needed = (90_000 // 8 + 16_000 + 15_001) * 8 * GWEI
    assert len(listed(cycle([quorum(gas_budget_wei=needed)], [node(1), node(2)]))) == 2
    assert listed(cycle([quorum(gas_budget_wei=needed - 1)], [node(1), node(2)])) == [(0, Reason.GAS_BUDGET_SHORT, 0)]


def test_quorum__not_deterministic__is_never_placed() -> None:
    inputs = cycle([quorum(deterministic=False)], [node(1), node(2)])
    assert listed(inputs) == [(0, Reason.NOT_DETERMINISTIC, 0)]


def test_quorum__listed_again__keeps_its_nodes_beside_a_new_one() -> None:
    nodes = [node(1, in_flight=4, free_memory_mb=0), node(2), node(9)]
    inputs = cycle([again(1)], nodes)
    price = 2 * 10**12 + 10**14
    assert listed(inputs) == [(1, Reason.QUORUM_KEPT, price), (2, Reason.LOWEST_COST, price)]
    assert {p.decision.supersedes_round for p in plan_cycle(inputs).decisions} == {11}


def test_quorum__dearer_new_node__raises_what_the_kept_one_gets() -> None:
    inputs = cycle([again(1)], [node(1), node(2, offers=(offer(thousand=10**15),))])
    assert {reward for _, _, reward in listed(inputs)} == {2 * 10**12 + 10**15}


def test_quorum__enough_nodes_agree__is_listed_again_without_a_new_one() -> None:
    inputs = cycle([again(1, 2, dropped=(9,))], [node(1), node(2), node(3)])
    assert [each[:2] for each in listed(inputs)] == [(1, Reason.QUORUM_KEPT), (2, Reason.QUORUM_KEPT)]


def test_quorum__in_the_round_of_its_last_listing__waits_for_the_next() -> None:
    nodes = [node(1), node(2)]
    assert listed(cycle([again(1, supersedes_round=12)], nodes)) == [(0, Reason.ROUND_OF_QUORUM, 0)]
    assert len(listed(cycle([again(1, supersedes_round=12)], nodes, round=13))) == 2


def test_quorum__n_nodes_were_tried__is_exhausted() -> None:
    nodes = [node(number) for number in (1, 2, 3)]
    assert listed(cycle([again(1, dropped=(8, 9))], nodes)) == [(0, Reason.ATTEMPTS_EXHAUSTED, 0)]
    assert len(listed(cycle([again(1, dropped=(8, 9), n=4)], nodes))) == 2


def test_quorum__listed_too_often__is_exhausted_though_its_nodes_agree() -> None:
    nodes = [node(1), node(2)]
    assert len(listed(cycle([again(1, 2, dropped=(), assignments=5)], nodes))) == 2
    assert listed(cycle([again(1, 2, dropped=(), assignments=6)], nodes)) == [(0, Reason.ATTEMPTS_EXHAUSTED, 0)]


def test_quorum__kept_node_is_away__another_takes_its_place_as_long_as_n_allows() -> None:
    nodes = [node(2), node(3)]
    assert [each[0] for each in listed(cycle([again(1, n=4)], nodes))] == [2, 3]
    assert listed(cycle([again(1, n=3)], nodes)) == [(0, Reason.NODES_SILENT, 0)]


def test_quorum__two_kept_nodes_of_one_owner__are_one_vote() -> None:
    """An owner that brings a second key in must not make a quorum alone."""
    nodes = [node(1, owner=address_number(7)), node(2, owner=address_number(7)), node(3)]
    inputs = cycle([again(1, 2, dropped=(), n=3, tried_owners=(address_number(7),))], nodes)
    assert [each[:2] for each in listed(inputs)] == [(1, Reason.QUORUM_KEPT), (3, Reason.LOWEST_COST)]


def test_quorum__another_node_of_an_owner_that_was_tried__is_no_spare() -> None:
    inputs = cycle([again(1)], [node(1), node(2, owner=address_number(9))])
    assert listed(inputs) == [(0, Reason.OWNERS_TOO_FEW, 0)]


def test_quorum__node_on_probation__caps_what_all_of_them_get() -> None:
    """The market pays no set with such a node more: it goes with nodes that are as cheap, or does without it."""
    young = {"settled_count": 0}
    dear = (offer(thousand=2 * 10**15),)
    cheap_young, dear_old, cheap, dear_old_2 = (
        node(1, **young),
        node(2, offers=dear),
        node(3),
        node(4, offers=dear),
    )
    assert [each[0] for each in listed(cycle([quorum()], [cheap_young, dear_old, cheap]))] == [2, 3]
    assert [each[0] for each in listed(cycle([quorum()], [cheap_young, dear_old, dear_old_2]))] == [2, 4]
    assert [each[0] for each in listed(cycle([quorum()], [cheap_young, cheap]))] == [1, 3]
    assert listed(cycle([quorum()], [cheap_young, dear_old])) == [(0, Reason.PROBATION, 0)]


def test_quorum__nodes_were_given_to_requests_ahead__waits_for_the_next_turn() -> None:
    ahead = waiting(2, priority_fee_wei=10**18, max_reward_wei=10**17)
    plan = plan_cycle(cycle([quorum(priority_fee_wei=0), ahead], [node(1), node(2)]))
    assert [p.decision.reason for p in plan.decisions] == [Reason.LOWEST_COST, Reason.NODES_TAKEN]


def test_quorum__a_busy_node_too_few__says_that_they_are_busy() -> None:
    assert listed(cycle([quorum()], [node(1), node(2, in_flight=4)])) == [(0, Reason.NODES_BUSY, 0)]


def test_quorum__counts_once_in_its_lane_and_streak() -> None:
    quorums = [quorum(number, lane=Lane.REALTIME) for number in (1, 2)]
    inputs = cycle(quorums, [node(i) for i in range(1, 9)], policy=Policy(realtime_capacity=2, bulk_capacity=0))
    plan = plan_cycle(inputs)
    assert (len(plan.decisions), plan.lane_streak) == (4, 2)


# Lanes


def taken(inputs: CycleInputs) -> tuple[str, int]:
    """The order in which lanes were served, R and B, and the streak after it."""
    lane_of = {request.request_id: "RB"[request.lane] for request in inputs.requests}
    plan = plan_cycle(inputs)
    return "".join(lane_of[p.decision.request_id] for p in plan.of_kind(DecisionKind.ASSIGNED)), plan.lane_streak


def lanes(realtime: int, bulk: int, nodes: int = 99, **fields: Any) -> CycleInputs:
    requests = [waiting(i, lane=Lane.REALTIME) for i in range(1, realtime + 1)]
    # Bulk has the higher scores: it is the lane that decides.
    requests += [waiting(1000 + i, lane=Lane.BULK, priority_fee_wei=10**18) for i in range(bulk)]
    return cycle(requests, [node(i) for i in range(1, nodes + 1)], **fields)


def test_lanes__both_wait__one_bulk_after_each_twenty_realtime() -> None:
    assert taken(lanes(45, 3)) == ("R" * 20 + "B" + "R" * 20 + "B" + "R" * 5 + "B", 0)


def test_lanes__the_streak__goes_on_in_the_next_cycle() -> None:
    order, streak = taken(lanes(12, 0))
    assert (order, streak) == ("R" * 12, 12)
    assert taken(lanes(12, 1, lane_streak=streak)) == ("R" * 8 + "B" + "R" * 4, 4)
    assert taken(lanes(1, 1, lane_streak=20)) == ("BR", 1)
    assert taken(lanes(1, 1, lane_streak=33)) == ("BR", 1)


def test_lanes__the_streak__counts_what_was_assigned_only() -> None:
    assert taken(lanes(30, 1, nodes=5, lane_streak=3)) == ("R" * 5, 8)
    inputs = lanes(2, 2, lane_streak=20)
    unserved = tuple(
        replace(each, prompt_available=each.lane is Lane.REALTIME or each.request_id != hash_number(1000))
        for each in inputs.requests
    )
    # A bulk request that cannot be placed does not use up the turn of its lane.
    assert taken(replace(inputs, requests=unserved)) == ("BRR", 2)


def test_lanes__within_a_lane__the_higher_score_goes_first() -> None:
    requests = [waiting(i, priority_fee_wei=i * 10**16) for i in range(1, 6)]
    plan = plan_cycle(cycle(requests, [node(i) for i in range(1, 6)]))
    assert [int(p.decision.request_id, 16) for p in plan.decisions] == [5, 4, 3, 2, 1]


def test_lanes__full_realtime__overflows_into_bulk_then_into_the_backlog() -> None:
    requests = [waiting(i, priority_fee_wei=(10 - i) * 10**16) for i in range(1, 6)]
    inputs = cycle(requests, [node(i) for i in range(1, 9)], policy=Policy(realtime_capacity=2, bulk_capacity=1))
    got = reasons(inputs)
    assert [got[hash_number(i)] for i in range(1, 6)] == [Reason.LOWEST_COST] * 3 + [Reason.LANE_FULL] * 2


def test_lanes__bulk__never_takes_a_realtime_place() -> None:
    requests = [waiting(i, lane=Lane.BULK) for i in range(1, 4)]
    inputs = cycle(requests, [node(i) for i in range(1, 9)], policy=Policy(realtime_capacity=9, bulk_capacity=1))
    assert sorted(reasons(inputs).values()) == [Reason.LOWEST_COST, Reason.LANE_FULL, Reason.LANE_FULL]


def test_lanes__realtime_below_the_fee_floor__waits_as_bulk() -> None:
    floor = Policy(realtime_fee_floor_wei=10**16)
    cheap, dear, old_bulk = (
        waiting(1, priority_fee_wei=10**16 - 1),
        waiting(2, priority_fee_wei=10**16),
        waiting(3, lane=Lane.BULK, priority_fee_wei=10**18),
    )
    plan = plan_cycle(cycle([cheap, dear, old_bulk], [node(i) for i in range(1, 4)], policy=floor))
    assert [int(p.decision.request_id, 16) for p in plan.decisions] == [2, 3, 1]


def test_lanes__default_capacities__are_200_and_1000() -> None:
    inputs = lanes(201, 1001, nodes=1)
    full = [request_id for request_id, reason in reasons(inputs).items() if reason is Reason.LANE_FULL]
    # The realtime request of the lowest rank comes last, when bulk is full, too.
    assert full == [hash_number(2000), hash_number(201)]


@pytest.mark.parametrize(
    "useless",
    [{"prompt_available": False}, {"gas_budget_wei": 0}, {"max_reward_wei": 0}, {"assignments": 3}],
    ids=["prompt withheld", "no gas budget", "no reward", "tried enough"],
)
def test_lanes__requests_that_nobody_could_serve__take_no_place(useless: dict[str, Any]) -> None:
    spam = [waiting(i, priority_fee_wei=10**17, **useless) for i in range(2, 9)]
    inputs = cycle([waiting(1), *spam], [node(1)], policy=Policy(realtime_capacity=2, bulk_capacity=2))
    got = reasons(inputs)
    assert got[hash_number(1)] is Reason.LOWEST_COST
    assert Reason.LANE_FULL not in got.values()


def test_too_late__comes_first_and_takes_no_place_in_a_lane() -> None:
    requests = [waiting(1), waiting(2, deadline_s=NOW_S)]
    plan = plan_cycle(cycle(requests, [node(1)], policy=Policy(realtime_capacity=1, bulk_capacity=0)))
    assert [p.decision.reason for p in plan.decisions] == [Reason.DEADLINE_PASSED, Reason.LOWEST_COST]
    assert plan.decisions[0].score_e9 == -(10**9)
