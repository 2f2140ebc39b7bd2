"""Rounds: what was decided between two records, as one list of leaves under one root."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.cycle import Anchor
from headrace.core.keccak import keccak
from headrace.core.merkle import leaf_of, root_of, sort_decisions
from headrace.core.types import Decision, DecisionKind, Hash32, RoundRecord


def merge_decisions(cycles: Iterable[Iterable[Decision]]) -> list[Decision]:
    """The leaves of a round from its cycles, oldest first.

    Every assignment is a leaf. A request that was never assigned in the round has one leaf: its last decision.
    """
    assigned: dict[tuple[Hash32, str], Decision] = {}
    others: dict[Hash32, Decision] = {}
    for decisions in cycles:
        for decision in decisions:
            if decision.kind is DecisionKind.ASSIGNED:
                assigned[decision.request_id, decision.node] = decision
            else:
                others[decision.request_id] = decision
    served = {request_id for request_id, _ in assigned}
    rest = [decision for request_id, decision in others.items() if request_id not in served]
    return sort_decisions([*assigned.values(), *rest])


def hash_snapshots(snapshot_hashes: Sequence[Hash32]) -> Hash32:
    """One hash over the snapshots of a round's cycles, in their order: keccak256 of their concatenated hashes."""
    return "0x" + keccak(b"".join(bytes.fromhex(hash_[2:]) for hash_ in snapshot_hashes)).hex()


def close_round(
    round_: int,
    leaves: Sequence[Decision],
    snapshot_hashes: Sequence[Hash32],
    policy_hash: Hash32,
    anchor: Anchor,
) -> RoundRecord:
    """The record of a round.

    Args:
        round_: its number.
        leaves: from `merge_decisions`.
        snapshot_hashes: of its cycles, in order.
        policy_hash: of the policy that all its cycles followed.
        anchor: of its last cycle.
    """
    counts = {kind: sum(1 for leaf in leaves if leaf.kind is kind) for kind in DecisionKind}
    return RoundRecord(
        round=round_,
        decisions_root=root_of([leaf_of(leaf) for leaf in leaves]),
        snapshot_hash=hash_snapshots(snapshot_hashes),
        policy_hash=policy_hash,
        anchor_block=anchor.block,
        anchor_hash=anchor.hash,
        assigned=counts[DecisionKind.ASSIGNED],
        skipped=counts[DecisionKind.SKIPPED],
        too_late=counts[DecisionKind.TOO_LATE],
    )
