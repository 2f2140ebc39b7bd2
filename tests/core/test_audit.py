"""The audit: a true round passes, and each tampered field is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from eth_utils.crypto import keccak

from headrace.core import typed_data
from headrace.core.audit import ServedRound, Severity, audit_rounds, chained_head, recorded_round
from headrace.core.canonical import canonical_json
from headrace.core.events import ChainEvent
from headrace.core.fairness import Account
from headrace.core.rounds import hash_snapshots
from headrace.core.scheduling import Carried, CycleInputs, Offer, Policy, plan_cycle
from headrace.core.snapshot import SnapshotWriter, base_of, encode_snapshot
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Mode, Price, Reason, RoundRecord, Status
from tests.core.audit_world import NODE_SIGNER, NODE_SIGNERS, World, node_view
from tests.fakes import MODEL_ID, RELAYER, TERMS, FakeChain, FakeSigner, make_request

OTHER_SIGNER = FakeSigner(6)

Edit = Callable[[CycleInputs], CycleInputs]


def edit_node(**changes: Any) -> Edit:
    return lambda inputs: replace(inputs, nodes=(replace(inputs.nodes[0], **changes), *inputs.nodes[1:]))


def edit_request(**changes: Any) -> Edit:
    return lambda inputs: replace(inputs, requests=(replace(inputs.requests[0], **changes), *inputs.requests[1:]))


def with_forged_heartbeat(inputs: CycleInputs) -> CycleInputs:
    return replace(inputs, nodes=(node_view(NODE_SIGNER, inputs.now_ms, signed_by=OTHER_SIGNER),))


def with_bent_heartbeat(inputs: CycleInputs) -> CycleInputs:
    content = {**json.loads(inputs.nodes[0].heartbeat), "free_memory_mb": 1}
    return replace(inputs, nodes=(replace(inputs.nodes[0], heartbeat=canonical_json(content).decode()),))


def test_audit_rounds__honest_rounds__finds_nothing() -> None:
    world = World(make_request(salt=1), make_request(salt=2))
    first = world.inputs()
    streak = plan_cycle(first).lane_streak
    world.record(first, replace(world.inputs(cycle=1, streak=streak)))
    world.record(world.inputs(round_=2, streak=plan_cycle(world.inputs(cycle=1, streak=streak)).lane_streak))
    assert world.findings() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"decisions_root": "0x" + "99" * 32},
        {"policy_hash": "0x" + "99" * 32},
        {"assigned": 7},
        {"skipped": 7},
        {"too_late": 7},
    ],
)
def test_audit_rounds__record_says_something_else__is_a_difference(changes: dict[str, Any]) -> None:
    world = World(make_request())
    world.record(world.inputs(), **changes)
    (name,) = changes
    found = next(finding for finding in world.findings() if finding.field == name)
    assert found.severity is Severity.DIFFERENCE
    assert found.got == str(changes[name])


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda inputs: replace(inputs, chain_id=1), "cycle 0 chain_id"),
        (lambda inputs: replace(inputs, market=RELAYER), "cycle 0 market"),
        (lambda inputs: replace(inputs, round=1, cycle=4), "cycle 0 cycle"),
        (lambda inputs: replace(inputs, terms=replace(TERMS, grace_s=1)), "cycle 0 terms"),
        (lambda inputs: replace(inputs, requests=inputs.requests[::-1]), "cycle 0 requests"),
        (lambda inputs: replace(inputs, requests=inputs.requests[:1]), "completeness"),
        (edit_request(request_id="0x" + "00" * 32), "request 0x" + "00" * 32 + " existence"),
        (edit_request(max_reward_wei=1), "max_reward_wei"),
        (edit_request(priority_fee_wei=0), "priority_fee_wei"),
        (edit_request(callback_gas=1), "callback_gas"),
        (edit_request(answer_bytes=1), "answer_bytes"),
        (edit_request(verifier=RELAYER), "verifier"),
        (edit_request(verifier_gas=1), "verifier_gas"),
        (edit_request(included_at_s=0), "included_at_s"),
        (edit_request(deadline_s=2_000_000_000), "deadline_s"),
        (edit_node(free_memory_mb=3_999), "free_memory_mb"),
        (edit_node(max_in_flight=1), "max_in_flight"),
        (edit_node(avg_latency_ms=701), "avg_latency_ms"),
        (edit_node(verifiers=(RELAYER,)), "verifiers"),
        (edit_node(in_flight=0), "in_flight"),
        (edit_node(heartbeat_at_ms=1), "heartbeat_at_ms"),
        (edit_node(heartbeat_signature="0x"), "heartbeat_signature"),
        (edit_node(offers=(Offer("0x" + "e2" * 32, "other", Price(0, 0)),)), "offers"),
        (with_forged_heartbeat, "heartbeat_signature"),
        (with_bent_heartbeat, "heartbeat_signature"),
    ],
)
def test_audit_rounds__snapshot_is_untrue__names_the_field(edit: Edit, field: str) -> None:
    world = World(make_request(salt=1), make_request(salt=2))
    world.record(edit(world.inputs()))
    fields = [finding.field for finding in world.findings() if finding.severity is Severity.DIFFERENCE]
    assert any(name.endswith(field) for name in fields), fields


def test_audit_rounds__request_with_call_outs__is_as_it_was_posted() -> None:
    extras = {"callback_gas": 100_000, "inline_result": True, "mode": Mode.VERIFIER, "verifier": RELAYER}
    world = World(make_request(**extras))
    world.record(world.inputs())
    assert world.findings() == []


@pytest.mark.parametrize("gas", [0, TERMS.verifier_gas + 1])
def test_audit_rounds__verifier_counted_with_nothing_or_too_much__is_a_difference(gas: int) -> None:
    world = World(make_request(mode=Mode.VERIFIER, verifier=RELAYER))
    world.record(edit_request(verifier_gas=gas)(world.inputs()))
    (finding,) = world.findings()
    assert finding.field.endswith("verifier_gas")
    assert finding.expected == f"1 to {TERMS.verifier_gas}"


def test_audit_rounds__more_in_flight_than_the_heartbeat__is_the_relayers_own_count() -> None:
    world = World(make_request())
    world.record(edit_node(in_flight=2)(world.inputs()), assigned=0)
    assert world.findings() == []


def test_audit_rounds__streak_does_not_follow__is_a_difference() -> None:
    world = World(make_request())
    world.record(world.inputs(), world.inputs(cycle=1, streak=19))
    assert [finding.field for finding in world.findings()] == ["cycle 1 lane_streak"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lane_lag", {"lane_lag": 1}),
        ("floor_work", {"floor_work": 99}),
        ("accounts", {"accounts": (Account("0x" + "77" * 20, 10**6),)}),
    ],
)
def test_audit_rounds__account_does_not_follow__is_a_difference(name: str, changes: dict[str, Any]) -> None:
    """Who was served how much decides whose turn it is, so a relayer cannot make it up."""
    world = World(make_request())
    policy = Policy(name="balanced", lanes="shared")
    first = replace(world.inputs(), policy=policy)
    second = replace(first, cycle=1, requests=(), **vars_of(plan_cycle(first).carried) | changes)
    world.record(first, second)
    assert [finding.field for finding in world.findings()] == [f"cycle 1 {name}"]


@pytest.mark.parametrize("changes", [{"requester": RELAYER}, {"work": 1}, {"complexity_milli": 1}])
def test_audit_rounds__another_requester_or_work__is_a_difference(changes: dict[str, Any]) -> None:
    world = World(make_request())
    world.record(edit_request(**changes)(world.inputs()))
    (finding,) = world.findings()
    assert finding.field.endswith(next(iter(changes)))


def test_audit_rounds__model_called_cold_that_is_warm__is_a_difference() -> None:
    world = World(make_request())
    world.record(edit_node(offers=(Offer(MODEL_ID, "model", Price(0, 0), is_warm=False),))(world.inputs()))
    assert [finding.field.split()[-1] for finding in world.findings()] == ["is_warm"]


def vars_of(carried: Carried) -> dict[str, Any]:
    return {each.name: getattr(carried, each.name) for each in fields(carried)}


def test_audit_rounds__broken_chain_of_heads__is_a_difference() -> None:
    world = World(make_request())
    world.record(world.inputs())
    findings = world.findings(previous_head="0x" + "01" * 32)
    assert [finding.field for finding in findings] == ["head"]


def test_audit_rounds__nothing_served__is_a_violation() -> None:
    world = World(make_request())
    world.record(world.inputs())
    world.rounds = [(world.rounds[0][0], None)]
    assert [(each.severity, each.got) for each in world.findings()] == [(Severity.VIOLATION, "withheld")]


@pytest.mark.parametrize("data", [None, b"{}", b"\xff"])
def test_audit_rounds__snapshot_withheld_or_changed__is_a_violation(data: bytes | None) -> None:
    world = World(make_request())
    world.record(world.inputs())
    recorded, served = world.rounds[0]
    assert served is not None
    hash_ = served.snapshot_hashes[0]
    world.rounds = [(recorded, replace(served, snapshots={} if data is None else {hash_: data}))]
    assert [(each.severity, each.field) for each in world.findings()] == [(Severity.VIOLATION, "snapshot")]


def test_audit_rounds__other_list_of_snapshots__is_a_violation() -> None:
    world = World(make_request())
    world.record(world.inputs())
    recorded, _ = world.rounds[0]
    world.rounds = [(recorded, ServedRound(("0x" + "77" * 32,), {}))]
    assert [(each.severity, each.field) for each in world.findings()] == [(Severity.VIOLATION, "snapshot_hash")]


@pytest.mark.parametrize(
    "changes", [{"avg_latency_ms": -1}, {"offers": (Offer(MODEL_ID, "model", Price(1 << 100, 0)),)}]
)
def test_audit_rounds__snapshot_cannot_be_replayed__is_a_violation(changes: dict[str, Any]) -> None:
    world = World(make_request())
    world.record(world.inputs())
    recorded, _ = world.rounds[0]
    inputs = edit_request(max_reward_wei=1 << 200)(edit_node(**changes)(world.inputs()))
    if "offers" in changes:
        inputs = replace(inputs, terms=replace(TERMS, probation_max_reward_wei=1 << 200))
    data = encode_snapshot(inputs)
    hash_ = "0x" + keccak(data).hex()
    record = replace(recorded.record, snapshot_hash=hash_snapshots([hash_]))
    world.rounds = [(replace(recorded, record=record), ServedRound((hash_,), {hash_: data}))]
    assert (Severity.VIOLATION, "snapshot") in [(each.severity, each.field) for each in world.findings()]


def test_audit_rounds__orphaned_anchor__is_void() -> None:
    world = World(make_request())
    world.record(world.inputs(), anchor_hash="0x" + "77" * 32)
    assert [finding.severity for finding in world.findings()] == [Severity.VOID]


def test_audit_rounds__request_assigned_or_closed_or_past_its_deadline__is_not_demanded() -> None:
    assigned, closed, late = make_request(salt=1), make_request(salt=2), make_request(salt=3, deadline_s=1_750_000_004)
    waiting = make_request(salt=4)
    world = World(assigned, closed, late, waiting)
    world.chain.mine(world.chain.closed(world.chain.id_of(closed), Status.CANCELLED))
    world.chain.mine_many(2)
    world.requests = (waiting,)
    world.record(world.inputs())
    assert world.findings(settled_before=[world.chain.id_of(assigned)]) == []


def test_audit_rounds__request_that_names_no_relayer__may_be_served_and_need_not() -> None:
    open_race = make_request(salt=2, relayer=ZERO_ADDRESS)
    world = World(make_request(salt=1), open_race)
    world.record(world.inputs())
    world.requests = world.requests[:1]
    world.record(world.inputs(round_=2, streak=plan_cycle(world.inputs()).lane_streak))
    assert world.findings() == []


def test_audit_rounds__fee_raised_after_the_anchor__may_be_known_already() -> None:
    request = make_request()
    world = World(request)
    inputs = edit_request(priority_fee_wei=request.priority_fee_wei + 5)(world.inputs())
    world.chain.mine(world.chain.raised(world.chain.id_of(request), 5, 5))
    world.record(inputs)
    assert world.findings() == []


def test_recorded_round__event__round_trips() -> None:
    record = RoundRecord(3, *["0x" + "0a" * 32] * 3, 9, "0x" + "0b" * 32, 1, 2, 3)
    chain = FakeChain()
    log = chain.recorded(RELAYER, record)
    event = ChainEvent(4, ZERO_HASH, ZERO_HASH, 0, log.contract, log.name, log.args)
    assert recorded_round(event).record == record
    assert recorded_round(event).block == 4


def test_chained_head__low_40_bits__are_zero() -> None:
    record = RoundRecord(1, ZERO_HASH, ZERO_HASH, ZERO_HASH, 0, ZERO_HASH, 1, 0, 0)
    assert chained_head(ZERO_HASH, RELAYER, record).endswith("0" * 10)


# Quorums


QUORUM = {"mode": Mode.QUORUM, "k": 2, "n": 3}


def listed_twice(first: Edit = lambda inputs: inputs, second: Edit = lambda inputs: inputs) -> World:
    """Round 1 has the first two nodes; one of them misses, and round 2 has the other one with a spare."""
    world = World(make_request(**QUORUM))
    world.record(first(with_all_nodes(world.inputs())))
    streak = plan_cycle(with_all_nodes(world.inputs())).lane_streak
    world.record(second(again(with_all_nodes(world.inputs(round_=2, streak=streak)))))
    return world


def with_all_nodes(inputs: CycleInputs) -> CycleInputs:
    views = [node_view(signer, inputs.now_ms) for signer in NODE_SIGNERS]
    return replace(inputs, nodes=tuple(sorted(views, key=lambda view: view.node)))


def again(inputs: CycleInputs) -> CycleInputs:
    """As an honest relayer has it for the second listing: the nodes cost the same, so the first went first."""
    missed, kept = inputs.nodes[0], inputs.nodes[1]
    return edit_request(
        assignments=1,
        supersedes_round=1,
        kept_nodes=(kept.node,),
        excluded_nodes=(missed.node,),
        tried_owners=tuple(sorted((missed.owner, kept.owner))),
    )(inputs)


def test_audit_rounds__quorum_is_listed_again__finds_nothing() -> None:
    world = listed_twice()
    assert [len(world.leaves[round_]) for round_ in (1, 2)] == [2, 2]
    assert world.findings() == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"excluded_nodes": ()}, "listed nodes"),
        ({"excluded_nodes": (), "kept_nodes": ()}, "listed nodes"),
        ({"assignments": 0}, "assignments"),
        ({"supersedes_round": 0}, "supersedes_round"),
        ({"tried_owners": ()}, "tried_owners"),
        ({"k": 3}, "k"),
        ({"n": 4}, "n"),
        ({"k": 0}, "k"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_audit_rounds__quorum_forgets_or_invents__names_the_field(changes: dict[str, Any], field: str) -> None:
    """A relayer that forgets a node may ask more than n, until it finds those that agree with it."""
    world = listed_twice(second=edit_request(**changes))
    fields = [finding.field for finding in world.findings() if finding.severity is Severity.DIFFERENCE]
    assert any(name.endswith(f" {field}") for name in fields), fields


def test_audit_rounds__quorum_twice_in_a_round__is_a_difference() -> None:
    world = World(make_request(**QUORUM))
    one, two = (with_all_nodes(world.inputs(cycle=cycle)) for cycle in (0, 1))
    # Without its first listing in the snapshot, the second looks like the first.
    world.record(one, two)
    fields = {finding.field.split()[-1] for finding in world.findings()}
    assert {"assignments", "supersedes_round", "nodes"} <= fields


def test_audit_rounds__owner_of_a_node_is_another__is_a_difference() -> None:
    """Two nodes of one owner are one vote."""
    world = listed_twice(first=edit_node(owner=RELAYER))
    owned = min(signer.address for signer in NODE_SIGNERS)
    assert [finding.field for finding in world.findings()] == [f"node {owned} owner"]


def test_audit_rounds__node_is_not_registered__is_a_difference() -> None:
    world = listed_twice()
    (gone,) = [signer.address for signer in NODE_SIGNERS[:1]]
    del world.owners[gone]
    assert f"node {gone} owner" in [finding.field for finding in world.findings()]


def test_audit_rounds__listed_before_the_first_audited_round__is_not_held_against_it() -> None:
    world = listed_twice()
    (earlier, _), world.rounds = world.rounds[0], world.rounds[1:]
    id_ = world.chain.id_of(world.requests[0])
    assert world.findings(previous_head=earlier.head, settled_before=[id_]) == []


def test_audit_rounds__its_first_listing_is_withheld__only_that_is_found() -> None:
    world = listed_twice()
    world.rounds[0] = (world.rounds[0][0], None)
    assert [(finding.severity, finding.round) for finding in world.findings()] == [(Severity.VIOLATION, 1)]


# Deltas


def rounds_of_deltas() -> World:
    """Three rounds of two cycles each, whose snapshots are deltas from the second on."""
    world, writer = World(make_request(salt=1), make_request(salt=2)), SnapshotWriter()
    streak = 0
    for round_ in (1, 2, 3):
        cycles, texts = [], []
        for cycle in (0, 1):
            inputs = world.told(world.inputs(round_=round_, cycle=cycle, streak=streak))
            hash_, text = writer.write(inputs)
            writer.keep(hash_, text, inputs)
            cycles.append(inputs)
            texts.append(text)
            streak = plan_cycle(inputs).lane_streak
        world.record_as(cycles, texts)
    known: dict[str, bytes] = {}
    for number, (recorded, served) in enumerate(world.rounds):
        known |= served.snapshots
        world.rounds[number] = (recorded, replace(served, snapshots=dict(known)))
    return world


def test_audit_rounds__deltas__are_read_on_what_they_are_based_on() -> None:
    world = rounds_of_deltas()
    assert sum(base_of(text) is None for text in world.rounds[-1][1].snapshots.values()) == 1
    assert world.findings() == []
    last = replace(world.rounds[-1][1])
    assert audit_rounds([(world.rounds[-1][0], last)], world.evidence(), world.rounds[-2][0].head) == []


def test_audit_rounds__the_base_of_a_delta_is_withheld__is_a_violation() -> None:
    world = rounds_of_deltas()
    full = next(hash_ for hash_, text in world.rounds[0][1].snapshots.items() if base_of(text) is None)
    recorded, served = world.rounds[-1]
    kept = {hash_: text for hash_, text in served.snapshots.items() if hash_ != full}
    found = audit_rounds([(recorded, replace(served, snapshots=kept))], world.evidence(), world.rounds[-2][0].head)
    assert [(each.severity, each.expected, each.got) for each in found] == [(Severity.VIOLATION, full, "withheld")]


def test_audit_rounds__a_reason_that_was_not_told__is_a_difference() -> None:
    """A relayer that says it told a reason before keeps the decision out of the record."""
    world = World(make_request(salt=1), make_request(salt=2))
    world.record(world.inputs())
    streak = plan_cycle(world.inputs()).lane_streak
    (skipped,) = (id_ for id_, reason in world.reasons.items() if reason >= 10)
    world.reasons[skipped] = Reason.NODES_BUSY
    world.record(world.inputs(round_=2, streak=streak))
    assert f"request {skipped} last_reason" in {each.field for each in world.findings()}


def test_audit_rounds__a_row_that_stays_as_it_was__is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world, checked = rounds_of_deltas(), []
    recover = typed_data.signer_of
    monkeypatch.setattr(typed_data, "signer_of", lambda *given: checked.append(given) or recover(*given))
    assert world.findings() == []
    assert len(checked) == len(set(checked)) == 3
