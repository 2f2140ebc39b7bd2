"""Policy `balanced`: its laws, and for each listed fault of the reference that it does better."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.fairness import Account
from headrace.core.fees import reward_wei
from headrace.core.fields import from_json
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.candidates import Candidates
from headrace.core.routing.cost import cost_wei, expected_ms
from headrace.core.routing.filters import FILTERS
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import NodeTable
from headrace.core.scheduling import CycleInputs, CyclePlan, Engine, NodeView, Policy, WaitingRequest, plan_cycle
from headrace.core.scheduling.rules import Rules, offer_of, reward_of
from headrace.core.snapshot import decode_snapshot, encode_snapshot
from headrace.core.types import ZERO_ADDRESS, DecisionKind, Lane, Reason
from tests.core.protocol_vectors import read
from tests.core.strategies import (
    NOW_MS,
    NOW_S,
    REQUESTERS,
    address_number,
    balanced_policies,
    cycle_inputs,
    hash_number,
)
from tests.core.test_scheduling import cycle, node, offer, waiting
from tests.core.test_snapshot import objects

BALANCED = Policy(name="balanced", lanes="shared", exploration_milli=0)
INPUTS = cycle_inputs(max_requests=10, policies=balanced_policies)


def planned(requests: list[WaitingRequest], nodes: list[NodeView], **fields: Any) -> CyclePlan:
    return plan_cycle(cycle(requests, nodes, **{"policy": BALANCED} | fields))


def given_to(plan: CyclePlan) -> Counter[str]:
    return Counter(each.decision.node for each in plan.of_kind(DecisionKind.ASSIGNED))


def served(plan: CyclePlan) -> list[str]:
    return [each.decision.request_id for each in plan.of_kind(DecisionKind.ASSIGNED)]


def reason_of(plan: CyclePlan) -> Reason:
    (only,) = plan.decisions
    return only.decision.reason


def candidates_of(inputs: CycleInputs) -> list[Candidates]:
    """All requests over all nodes, by model."""
    asked, nodes = RequestTable(inputs.requests), NodeTable(inputs.nodes)
    graduated = nodes.is_graduated(inputs.terms, inputs.now_ms)
    found = []
    for model_id in {request.model_id for request in inputs.requests}:
        rows = [row for row, request in enumerate(inputs.requests) if request.model_id == model_id]
        block = nodes.offering(model_id)
        if block is not None:
            own = np.array(rows, dtype=np.int64)
            found.append(Candidates(asked, own, nodes, block, inputs.policy, inputs.terms, inputs.now_ms, graduated))
    return found


# Laws


@given(INPUTS)
def test_balanced__every_request__is_decided_exactly_once_and_a_quorum_whole_or_not_at_all(inputs: CycleInputs) -> None:
    decided = [each.decision for each in plan_cycle(inputs).decisions]
    assert {decision.request_id for decision in decided} == {request.request_id for request in inputs.requests}
    for request in inputs.requests:
        of_it = [decision for decision in decided if decision.request_id == request.request_id]
        assert len(of_it) == (request.k if request.k and of_it[0].kind is DecisionKind.ASSIGNED else 1)
        assert len({(decision.kind, decision.reward_wei) for decision in of_it}) == 1


@given(INPUTS | cycle_inputs(), st.data())
def test_plan__what_was_told_before__is_not_told_again_and_decides_nothing(
    inputs: CycleInputs, data: st.DataObject
) -> None:
    whole = plan_cycle(inputs)
    reasons = [Reason.NONE, Reason.LANE_FULL, *(each.decision.reason for each in whole.decisions)]
    last = {each.request_id: data.draw(st.sampled_from(reasons)) for each in inputs.requests}
    told = tuple(replace(each, last_reason=last[each.request_id]) for each in inputs.requests)
    plan = plan_cycle(replace(inputs, requests=told))
    assert plan.carried == whole.carried
    assert plan.decisions == tuple(
        each
        for each in whole.decisions
        if each.decision.kind is not DecisionKind.SKIPPED or each.decision.reason is not last[each.decision.request_id]
    )


@given(INPUTS)
def test_balanced__a_node__is_never_given_more_than_its_free_places(inputs: CycleInputs) -> None:
    views = {view.node: view for view in inputs.nodes}
    given = Counter(
        each.decision.node
        for each in plan_cycle(inputs).of_kind(DecisionKind.ASSIGNED)
        if each.decision.reason is not Reason.QUORUM_KEPT
    )
    for key, count in given.items():
        assert count <= views[key].max_in_flight - views[key].in_flight


@given(INPUTS)
def test_balanced__an_assignment__breaks_no_rule(inputs: CycleInputs) -> None:
    rules, views = Rules(inputs), {view.node: view for view in inputs.nodes}
    requests = {request.request_id: request for request in inputs.requests}
    for each in plan_cycle(inputs).of_kind(DecisionKind.ASSIGNED):
        decision, request = each.decision, requests[each.decision.request_id]
        view = views[decision.node]
        assert rules.refusal_of(request) is Reason.NONE
        assert decision.reward_wei * max(1, request.k) <= request.max_reward_wei
        assert decision.supersedes_round == request.supersedes_round
        if decision.reason is Reason.QUORUM_KEPT:
            continue
        assert not any(excludes(request, view) for excludes, _ in rules.filters())
        if not request.k:
            assert decision.reward_wei == reward_of(request, view)


@given(INPUTS)
def test_balanced__filters_over_columns__are_the_rules_over_one_node(inputs: CycleInputs) -> None:
    rules = Rules(inputs)
    scalar = {reason: excludes for excludes, reason in rules.filters()}
    assert list(scalar)[1:] == [each.reason for each in FILTERS]
    for candidates in candidates_of(inputs):
        rows, shape = candidates.block.rows.tolist(), (len(candidates.requests), len(candidates.block.rows))
        for each in FILTERS:
            keeps = each.keeps(candidates)
            whole = np.broadcast_to(True if keeps is None else keeps, shape)
            for request, kept in zip(candidates.requests, whole, strict=True):
                for index, row in enumerate(rows):
                    assert bool(kept[index]) is not scalar[each.reason](request, inputs.nodes[row]), each.reason


@given(INPUTS, st.integers(0, 3))
def test_balanced__costs_over_columns__are_the_formulas_of_one(inputs: CycleInputs, placed: int) -> None:
    for candidates in candidates_of(inputs):
        costs = costs_wei(candidates, placed)
        for request, own_costs in zip(candidates.requests, costs, strict=True):
            for index, row in enumerate(candidates.block.rows.tolist()):
                view = inputs.nodes[row]
                own = offer_of(request, view)
                assert own is not None
                ms = expected_ms(request, view, own, placed)
                expected = cost_wei(request, view, reward_of(request, view), ms, inputs.policy, inputs.now_ms)
                assert own_costs[index] == expected


@given(st.lists(INPUTS, min_size=2, max_size=4), st.data())
def test_engine__what_it_keeps_between_cycles__makes_no_plan_different(
    drawn: list[CycleInputs], data: st.DataObject
) -> None:
    """Requests and nodes come, go and change from cycle to cycle, and some stay as they are."""
    engine, before = Engine(), drawn[0]
    for each in drawn:
        inputs = replace(each, requests=mixed(before, each, "requests", data), nodes=mixed(before, each, "nodes", data))
        assert engine.plan(inputs) == plan_cycle(inputs)
        before = inputs


def mixed(before: CycleInputs, now: CycleInputs, name: str, data: st.DataObject) -> tuple[Any, ...]:
    """Some rows of a cycle and some of the one before it, in their order."""
    key = {"requests": "request_id", "nodes": "node"}[name]
    rows = {getattr(row, key): row for row in getattr(now, name)}
    for row in getattr(before, name):
        if data.draw(st.booleans()):
            rows[getattr(row, key)] = row
    return tuple(rows[each] for each in sorted(rows))


@given(INPUTS)
def test_balanced__nobody_is_stranded_who_could_be_served(inputs: CycleInputs) -> None:
    """A single request skipped for its turn finds no place, even if all that were placed may be moved."""
    plan = plan_cycle(inputs)
    rules = Rules(inputs)
    requests = {request.request_id: request for request in inputs.requests}
    if any(request.k for request in requests.values()):
        return  # a quorum keeps the places that it took
    placed = [requests[each.decision.request_id] for each in plan.of_kind(DecisionKind.ASSIGNED)]
    fields = {"exploration_milli": 0}
    for each in plan.of_kind(DecisionKind.SKIPPED):
        if each.decision.reason is Reason.NODES_TAKEN:
            everyone = [*placed, requests[each.decision.request_id]]
            room = replace(inputs.policy, realtime_capacity=99, bulk_capacity=99, **fields)
            again = replace(inputs, policy=room, requests=tuple(sorted(everyone, key=lambda one: one.request_id)))
            assert len(served(plan_cycle(again))) <= len(placed)
        elif each.decision.reason not in (Reason.LANE_FULL, Reason.NODES_BUSY, Reason.STAKE_SHORT):
            request = requests[each.decision.request_id]
            assert rules.refusal_of(request) is not Reason.NONE or not rules.could_be_served(request)


@given(INPUTS)
def test_balanced__accounts__grow_by_what_was_assigned_and_by_nothing_else(inputs: CycleInputs) -> None:
    plan = plan_cycle(inputs)
    assert plan.floor_work >= inputs.floor_work
    before = {account.requester: account.served_work for account in inputs.accounts}
    requests = {request.request_id: request for request in inputs.requests}
    charged = Counter[str]()
    for request_id in set(served(plan)):
        charged[requests[request_id].requester] += requests[request_id].work
    for account in plan.accounts:
        start = max(inputs.floor_work, before.get(account.requester, 0))
        assert account.served_work == start + charged[account.requester]


@given(INPUTS, st.integers(0, 9))
@settings(max_examples=60)
def test_balanced__a_request_pays_more__it_is_no_less_served(inputs: CycleInputs, index: int) -> None:
    """With one place in all and one request a requester, whoever is served is served still for a higher fee."""
    singles = [request for request in inputs.requests if not request.k][:3]
    if not singles:
        return
    nodes = (node(1, in_flight=3, max_in_flight=4, offers=inputs.nodes[0].offers if inputs.nodes else (offer(),)),)
    asked = [replace(each, requester=address_number(number), work=10) for number, each in enumerate(singles)]
    # A lane that takes nobody is not what a higher fee leads to.
    room = replace(inputs.policy, realtime_capacity=200, bulk_capacity=1_000)
    alone = replace(inputs, policy=room, requests=tuple(asked), nodes=nodes, accounts=(), lane_lag=0)
    chosen = asked[index % len(asked)]
    if chosen.request_id not in served(plan_cycle(alone)):
        return
    richer = tuple(
        replace(each, priority_fee_wei=each.priority_fee_wei + 10**17) if each is chosen else each for each in asked
    )
    assert chosen.request_id in served(plan_cycle(replace(alone, requests=richer)))


# The reference's faults


def test_fault__one_assignment_a_node_and_cycle__all_free_places_are_filled() -> None:
    nodes = [node(8, in_flight=0, max_in_flight=16), node(9, in_flight=0, max_in_flight=16)]
    asked = [waiting(number) for number in range(1, 11)]
    assert len(served(plan_cycle(cycle(asked, nodes)))) == 2
    assert given_to(planned(asked, nodes)) == {address_number(8): 5, address_number(9): 5}


def test_fault__high_fees_starve_the_rest__a_requester_is_served_in_turn() -> None:
    rich = [waiting(number, priority_fee_wei=10**18, requester=REQUESTERS[0], work=100) for number in range(1, 9)]
    poor = waiting(99, priority_fee_wei=0, requester=REQUESTERS[1], work=100, included_at_s=NOW_S)
    nodes = [node(8, in_flight=2, max_in_flight=4), node(9, in_flight=4, max_in_flight=4)]
    reference = cycle([*rich, poor], nodes, policy=Policy())
    assert poor.request_id not in served(plan_cycle(reference))
    assert poor.request_id in served(planned([*rich, poor], nodes))


def test_fault__gas_price_moves_both_terms__time_has_a_price_of_its_own() -> None:
    """Whatever gas costs, a hurried request takes the fast node and a patient one the cheap node."""
    nodes = [
        node(8, offers=(offer(thousand=2 * 10**14),), avg_latency_ms=100),
        node(9, offers=(offer(thousand=10**14),), avg_latency_ms=20_000),
    ]
    for fee_wei, expected in ((0, 9), (10**18, 8)):
        plan = planned([waiting(1, priority_fee_wei=fee_wei)], nodes)
        assert plan.decisions[0].decision.node == address_number(expected)


def test_fault__gas_shared_by_node__a_busier_node_is_not_the_cheaper() -> None:
    nodes = [node(8, in_flight=3, max_in_flight=4), node(9, in_flight=0, max_in_flight=4)]
    reference = plan_cycle(cycle([waiting(1)], nodes))
    assert reference.decisions[0].decision.node == address_number(8)
    assert planned([waiting(1)], nodes).decisions[0].decision.node == address_number(9)


def test_fault__first_come_takes_the_only_node_of_another__both_are_served() -> None:
    special = replace(offer(), model_id=hash_number(7), model_name="special")
    nodes = [
        node(8, offers=(offer(thousand=1), special), in_flight=3, max_in_flight=4),
        node(9, offers=(offer(thousand=10**14),), in_flight=3, max_in_flight=4),
    ]
    asked = [waiting(1, priority_fee_wei=10**16), waiting(2, model_id=hash_number(7), model_name="special")]
    assert len(served(plan_cycle(cycle(asked, nodes)))) == 1
    assert given_to(planned(asked, nodes)) == {address_number(8): 1, address_number(9): 1}


# Where


def test_where__a_cold_model__costs_its_loading() -> None:
    warm, cold = offer(), replace(offer(), is_warm=False)
    plan = planned([waiting(1, required_memory_mb=8_000)], [node(8, offers=(cold,)), node(9, offers=(warm,))])
    assert plan.decisions[0].decision.node == address_number(9)


def test_where__a_pace_that_was_seen__counts_more_than_the_nodes_word() -> None:
    seen = replace(offer(), us_per_token=50_000)
    boast = node(8, offers=(seen,), avg_latency_ms=1)
    plan = planned([waiting(1, max_output_tokens=500)], [boast, node(9, avg_latency_ms=2_000)])
    assert plan.decisions[0].decision.node == address_number(9)


def test_where__a_node_that_misses__is_avoided_the_more_the_larger_the_reward() -> None:
    cheap, dear = offer(thousand=10**14), offer(thousand=10**14 + 2 * 10**13)
    flaky = node(8, offers=(cheap,), answered=80, missed=20, avg_latency_ms=900)
    solid = node(9, offers=(dear,), answered=100, missed=0, avg_latency_ms=900)
    small = waiting(1, prompt_bytes=1, max_output_tokens=1, max_reward_wei=10**18)
    plan = planned([small], [flaky, replace(solid, offers=(offer(kib=5 * 10**13, thousand=10**14),))])
    assert plan.decisions[0].decision.node == address_number(8)
    large = replace(small, max_output_tokens=900_000, deadline_s=NOW_S + 80_000)
    assert planned([large], [flaky, replace(solid, offers=(offer(thousand=11 * 10**13),))]).decisions[
        0
    ].decision.node == (address_number(9))


def test_where__runner_up__is_the_cheapest_other_node() -> None:
    nodes = [node(number, offers=(offer(thousand=number * 10**14),)) for number in (7, 8, 9)]
    (only,) = planned([waiting(1)], nodes).decisions
    assert (only.decision.node, only.runner_up) == (address_number(7), address_number(8))
    assert only.runner_up_cost_wei > only.cost_wei > reward_wei(offer(thousand=7 * 10**14).price, 1500, 256)


# Reasons of its own


def test_reason__too_slow__waits_for_a_faster_node() -> None:
    request = waiting(1, deadline_s=NOW_S + 10)
    assert reason_of(planned([request], [node(1, avg_latency_ms=10_001)])) is Reason.NODES_TOO_SLOW
    assert reason_of(planned([request], [node(1, avg_latency_ms=10_000)])) is Reason.LOWEST_COST


def test_reason__stake_is_used_up__waits() -> None:
    price = reward_of(waiting(1), node(1))
    full = node(1, stake_wei=10**15, exposure_wei=10**15 - price + 1)
    assert reason_of(planned([waiting(1)], [full])) is Reason.STAKE_SHORT
    assert reason_of(planned([waiting(1)], [replace(full, exposure_wei=10**15 - price)])) is Reason.LOWEST_COST


def test_exploration__a_share_goes_to_nodes_on_probation() -> None:
    new = node(8, settled_count=0, offers=(offer(thousand=2 * 10**14),))
    old = node(9)
    policy = replace(BALANCED, exploration_milli=100)
    asked = [waiting(number * 65_537 % 2**24) for number in range(1, 200)]
    to_new = 0
    for request in asked:
        (only,) = planned([request], [new, old], policy=policy).decisions
        is_explored = only.decision.reason is Reason.EXPLORATION
        assert only.decision.node == (new.node if is_explored else old.node)
        to_new += is_explored
    assert 5 <= to_new <= 45


def test_exploration__no_time_for_it__goes_where_it_is_cheapest() -> None:
    new, old = node(8, settled_count=0, avg_latency_ms=6_000), node(9)
    policy = replace(BALANCED, exploration_milli=1_000)
    (only,) = planned([waiting(1, deadline_s=NOW_S + 10)], [new, old], policy=policy).decisions
    assert (only.decision.node, only.decision.reason) == (old.node, Reason.LOWEST_COST)


# The working set and what passes to the next cycle


def test_working_set__is_full__the_rest_waits_and_is_looked_at_again() -> None:
    policy = replace(BALANCED, realtime_capacity=2)
    plan = planned([waiting(number) for number in range(1, 6)], [node(1)], policy=policy)
    assert [each.decision.reason for each in plan.of_kind(DecisionKind.SKIPPED)] == [Reason.LANE_FULL] * 3


def test_working_set__what_nobody_could_take__takes_no_place() -> None:
    policy = replace(BALANCED, realtime_capacity=1)
    asked = [*(waiting(number, max_reward_wei=1) for number in range(1, 6)), waiting(9, included_at_s=NOW_S)]
    assert served(planned(asked, [node(1)], policy=policy)) == [hash_number(9)]


def test_lanes__lag_passes_to_the_next_cycle() -> None:
    asked = [waiting(1, work=10), waiting(2, work=10, lane=Lane.BULK)]
    busy = node(1, in_flight=3, max_in_flight=4)
    first = planned(asked, [busy])
    assert served(first) == [hash_number(1)]
    assert first.lane_lag == 30
    assert served(planned(asked, [busy], lane_lag=first.lane_lag)) == [hash_number(2)]


def test_accounts__served_before__waits_for_the_other() -> None:
    asked = [waiting(1, requester=REQUESTERS[0], work=10), waiting(2, requester=REQUESTERS[1], work=10)]
    accounts = (Account(REQUESTERS[0], 50),)
    plan = planned(asked, [node(1, in_flight=3, max_in_flight=4)], accounts=accounts)
    assert served(plan) == [hash_number(2)]
    assert (plan.floor_work, plan.accounts) == (50, ())


def test_nothing_waits__decides_nothing_and_forgets_the_accounts() -> None:
    plan = planned([], [node(1)], lane_lag=4, accounts=(Account(REQUESTERS[0], 50),))
    assert plan == CyclePlan((), 0, 4, 50, ())


def test_overload__one_place_and_three_hundred_that_ask__is_decided() -> None:
    rng = np.random.default_rng(3)
    asked = [waiting(number, priority_fee_wei=int(rng.integers(0, 10**16))) for number in range(1, 301)]
    plan = planned(asked, [node(1, in_flight=3, max_in_flight=4, heartbeat_at_ms=NOW_MS)])
    counts = Counter(each.decision.reason for each in plan.decisions)
    assert counts == {Reason.LOWEST_COST: 1, Reason.NODES_TAKEN: 199, Reason.LANE_FULL: 100}
    assert all(each.decision.node == ZERO_ADDRESS for each in plan.of_kind(DecisionKind.SKIPPED))


# What a relayer may serve an auditor

BIG = 2**53 - 1


@given(st.data())
@settings(max_examples=300)
def test_plan__any_numbers_in_a_snapshot__are_planned_or_refused(data: st.DataObject) -> None:
    """An audit reads what a relayer serves: whatever is in it must not end the audit, nor take it long."""
    drawn = next(entry["inputs"] for entry in read("snapshots") if entry["name"] == "drawn, balanced")
    document = json.loads(json.dumps(drawn))
    for _ in range(data.draw(st.integers(1, 4))):
        found = data.draw(st.sampled_from([entry for entry in objects(document) if entry]))
        name = data.draw(st.sampled_from(sorted(found)))
        if isinstance(found[name], bool | list | dict):
            continue
        if isinstance(found[name], int):
            found[name] = data.draw(st.sampled_from([-BIG, -(2**40), -1, 0, 1, 2**31, 2**40, BIG]))
        elif name.endswith("_wei"):
            found[name] = str(data.draw(st.sampled_from([0, 1, 2**62, 2**63, 2**96, 10**77])))
    try:
        plan = plan_cycle(decode_snapshot(encode_snapshot(from_json(CycleInputs, document))))
    except (InvalidInput, ArithmeticError):
        return
    assert {each.decision.kind for each in plan.decisions} <= set(DecisionKind)
