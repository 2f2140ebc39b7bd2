"""Closing of rounds, which the scheduler and the settler share."""

from __future__ import annotations

from headrace.core.rounds import close_round, merge_decisions
from headrace.core.types import DecisionKind, RoundRecord
from headrace.ports import Store, StoredRound


async def close(store: Store, round_: StoredRound) -> RoundRecord:
    """Close the open round with the record of what its cycles decided."""
    cycles = await store.cycles(round_.round)
    leaves = merge_decisions([planned.decision for planned in cycle.plan.decisions] for cycle in cycles)
    hashes = [cycle.snapshot_hash for cycle in cycles]
    record = close_round(round_.round, leaves, hashes, round_.policy_hash, cycles[-1].anchor)
    await store.close_round(round_.round, record, leaves)
    return record


async def leave_behind(store: Store, round_: StoredRound) -> None:
    """End the open round, since a round follows one policy. What assigned nothing has no record and starts over."""
    cycles = await store.cycles(round_.round)
    if any(cycle.plan.of_kind(DecisionKind.ASSIGNED) for cycle in cycles):
        await close(store, round_)
    else:
        await store.restart_round(round_.round)
