from __future__ import annotations

from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.merkle import leaf_of, root_of, sort_decisions
from headrace.core.rounds import close_round, hash_snapshots, merge_decisions
from headrace.core.scheduling import Anchor
from headrace.core.types import ZERO_ADDRESS, Decision, DecisionKind, Reason
from tests.core.strategies import address_number, decision_lists, hash_number

A, B = hash_number(1), hash_number(2)
NODE, OTHER_NODE = address_number(1), address_number(2)


def assigned(request_id: str, node: str, supersedes: int = 0) -> Decision:
    return Decision(request_id, node, DecisionKind.ASSIGNED, Reason.LOWEST_COST, 5, supersedes)


def skipped(request_id: str, reason: Reason = Reason.NODES_TAKEN) -> Decision:
    return Decision(request_id, ZERO_ADDRESS, DecisionKind.SKIPPED, reason, 0, 0)


def too_late(request_id: str) -> Decision:
    return Decision(request_id, ZERO_ADDRESS, DecisionKind.TOO_LATE, Reason.DEADLINE_PASSED, 0, 0)


def test_merge__no_cycles__has_no_leaves() -> None:
    assert merge_decisions([]) == []
    assert merge_decisions([[], []]) == []


def test_merge__skipped_then_assigned__keeps_the_assignment_only() -> None:
    assert merge_decisions([[skipped(A)], [assigned(A, NODE)]]) == [assigned(A, NODE)]


def test_merge__assigned_then_skipped_or_too_late__keeps_the_assignment_only() -> None:
    assert merge_decisions([[assigned(A, NODE)], [skipped(A)], [too_late(A)]]) == [assigned(A, NODE)]


def test_merge__assigned_again_in_the_round__keeps_both_leaves() -> None:
    cycles = [[assigned(A, OTHER_NODE)], [skipped(A)], [assigned(A, NODE, supersedes=3)]]
    assert merge_decisions(cycles) == [assigned(A, NODE, supersedes=3), assigned(A, OTHER_NODE)]


def test_merge__never_assigned__keeps_the_last_decision() -> None:
    cycles = [[skipped(A, Reason.LANE_FULL), skipped(B)], [skipped(A)], [too_late(B)]]
    assert merge_decisions(cycles) == [skipped(A), too_late(B)]


@given(st.lists(decision_lists, max_size=5))
def test_merge__rules(cycles: list[list[Decision]]) -> None:
    leaves = merge_decisions(cycles)
    everything = [decision for cycle in cycles for decision in cycle]
    last = {(decision.request_id, decision.node): decision for decision in everything}
    assert leaves == sort_decisions(leaves)
    assert {leaf.request_id for leaf in leaves} == {decision.request_id for decision in everything}
    served = {decision.request_id for decision in everything if decision.kind is DecisionKind.ASSIGNED}
    for leaf in leaves:
        assert leaf == last[leaf.request_id, leaf.node]
        assert (leaf.kind is DecisionKind.ASSIGNED) is (leaf.request_id in served)
    kept = [(leaf.request_id, leaf.node) for leaf in leaves]
    assert len(kept) == len(set(kept))
    assert {key for key, decision in last.items() if decision.kind is DecisionKind.ASSIGNED} <= set(kept)


@given(decision_lists)
def test_close__counts_and_root__are_those_of_the_leaves(leaves: list[Decision]) -> None:
    anchor = Anchor(7, hash_number(9), 1)
    record = close_round(3, leaves, [A, B], hash_number(8), anchor)
    assert (record.round, record.policy_hash) == (3, hash_number(8))
    assert (record.anchor_block, record.anchor_hash) == (7, anchor.hash)
    assert record.snapshot_hash == hash_snapshots([A, B])
    assert record.decisions_root == root_of([leaf_of(leaf) for leaf in leaves])
    assert record.assigned + record.skipped + record.too_late == len(leaves)
    assert record.assigned == len([leaf for leaf in leaves if leaf.kind == 0])
    assert record.too_late == len([leaf for leaf in leaves if leaf.kind == 2])


@given(st.lists(st.integers(0, 2**256 - 1), max_size=4))
def test_snapshot_hash__is_over_the_hashes_in_order(numbers: list[int]) -> None:
    joined = b"".join(number.to_bytes(32, "big") for number in numbers)
    assert hash_snapshots([hash_number(number) for number in numbers]) == "0x" + keccak(joined).hex()
