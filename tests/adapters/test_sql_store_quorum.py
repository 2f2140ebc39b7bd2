"""Quorums in the store: several results of a request, and what the first miss, a dissent and the last vote do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from headrace.adapters.sql.database import Database, downgrade, upgrade
from headrace.adapters.sql.store import SqlStore
from headrace.core.envelope import hash_payload
from headrace.core.errors import IllegalTransition
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.scheduling import Anchor, CyclePlan, PlannedDecision
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Assignment, Decision, DecisionKind, Hash32, Mode, Reason
from headrace.ports import StoredAssignment, StoredCycle
from tests.adapters.steps import NOW_MS, POLICY_HASH, assign, batch, deliver, follow, post, signed, stages_of, state_of
from tests.fakes import RELAYER, START_S, FakeChain, FakeClock, make_request

A, B, C = ("0x" + each * 20 for each in ("d1", "d2", "d3"))
GOOD, OTHER = (b"\x01" + bytes(16) + each for each in (b"Rayleigh scattering.", b"Magic."))
QUORUM = {"mode": Mode.QUORUM, "k": 2, "n": 3}


async def list_quorum(store: SqlStore, request_id: Hash32, nodes: Sequence[str], supersedes: int = 0) -> int:
    """A cycle that assigns a quorum, in a round of its own. Returns the round."""
    last = [stored for stored in await store.rounds(limit=1) if stored.state == "open" and stored.cycles]
    for stored in last:
        async with store._database.write() as connection:
            await connection.execute(
                text("UPDATE rounds SET state = 'closed' WHERE round = :round"), {"round": stored.round}
            )
    round_ = (await store.open_round(NOW_MS, 1)).round
    decisions = [Decision(request_id, node, DecisionKind.ASSIGNED, Reason.LOWEST_COST, 7, supersedes) for node in nodes]
    snapshot = f"{round_}".encode()
    plan = CyclePlan(tuple(PlannedDecision(each, 0, 0, ZERO_ADDRESS, 0) for each in decisions), 0)
    cycle = StoredCycle(round_, 0, hash_payload(snapshot), Anchor(5, ZERO_HASH, START_S), NOW_MS, plan)
    before = len(await store.assignments(request_id))
    assignments = [
        StoredAssignment(
            request_id,
            before + number,
            Assignment(request_id, RELAYER, node, round_, 7, START_S + 3600),
            "open",
            NOW_MS,
            NOW_MS + 5000,
            b"word",
            b"",
            "",
        )
        for number, node in enumerate(nodes, start=1)
    ]
    await store.add_cycle(cycle, snapshot, assignments, POLICY_HASH)
    return round_


async def states(store: SqlStore, request_id: Hash32) -> list[str]:
    return [stored.state for stored in await store.assignments(request_id)]


async def test_add_cycle__quorum__is_moved_once_and_each_node_is_in_its_timeline(
    store: SqlStore, chain: FakeChain
) -> None:
    id_ = await post(store, chain, **QUORUM)
    await list_quorum(store, id_, (A, B))
    assert await state_of(store, id_) is RequestState.ASSIGNED
    assigned = [entry.detail for entry in await store.timeline(id_) if entry.stage == "assigned"]
    assert [(detail["node"], detail["attempt"]) for detail in assigned] == [(A, 1), (B, 2)]
    assert [detail.get("state") for detail in assigned] == ["assigned", None]


async def test_add_result__the_last_vote_of_a_listing__makes_it_ready(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, **QUORUM)
    round_ = await list_quorum(store, id_, (A, B))
    assert await deliver(store, id_, round_, A, GOOD)
    assert not await deliver(store, id_, round_, A, GOOD)
    assert (await state_of(store, id_), await store.result(id_)) == (RequestState.ASSIGNED, None)
    assert await store.ready_results(9) == []
    assert await deliver(store, id_, round_, B, GOOD)
    assert await state_of(store, id_) is RequestState.SIGNED
    votes = await store.results(id_)
    assert [vote.node for vote in votes] == [A, B]
    assert await store.ready_results(9) == [tuple(votes)]
    assert await store.result(id_) == votes[0]
    assert await store.open_assignments() == []
    assert [stage for stage in await stages_of(store, id_) if stage in ("voted", "delivered")] == ["voted", "delivered"]
    assert [stored.request_id for stored in await store.requests_of_payload(hash_payload(GOOD))] == [id_]


async def test_add_result__another_hash__moves_it_back_at_once(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, **QUORUM)
    round_ = await list_quorum(store, id_, (A, B))
    await deliver(store, id_, round_, A, GOOD)
    await deliver(store, id_, round_, B, OTHER)
    assert await state_of(store, id_) is RequestState.ELIGIBLE
    last = (await store.timeline(id_))[-1]
    assert (last.stage, last.detail["node"]) == ("dissented", B)
    assert {vote.result.result_hash for vote in await store.results(id_)} == {hash_payload(GOOD), hash_payload(OTHER)}


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.FAILED, Cause.LEASE_EXPIRED])
async def test_end_assignment__the_first_miss_moves_it_and_the_next_is_noted(
    store: SqlStore, chain: FakeChain, cause: Cause
) -> None:
    id_ = await post(store, chain, **QUORUM)
    await list_quorum(store, id_, (A, B))
    await store.end_assignment(id_, 1, Cause.ACCEPTED, NOW_MS, "", b"accept")
    assert await state_of(store, id_) is RequestState.COMPUTING
    # What a node has accepted it cannot refuse any more.
    for attempt in (2,) if cause is Cause.REFUSED else (1, 2):
        await store.end_assignment(id_, attempt, cause, NOW_MS, "why")
    assert await state_of(store, id_) is RequestState.ELIGIBLE
    assert (await stages_of(store, id_)).count(cause) == 1


async def test_end_assignment__accepted_by_both__is_computing_once(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, **QUORUM)
    await list_quorum(store, id_, (A, B))
    for attempt in (1, 2):
        await store.end_assignment(id_, attempt, Cause.ACCEPTED, NOW_MS, "", b"accept")
    assert await state_of(store, id_) is RequestState.COMPUTING
    assert await states(store, id_) == ["accepted", "accepted"]
    with pytest.raises(IllegalTransition):
        await store.end_assignment(id_, 1, Cause.REFUSED, NOW_MS, "too late for that")


async def test_add_cycle__listed_again__supersedes_what_still_runs(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, **QUORUM)
    first = await list_quorum(store, id_, (A, B))
    await store.end_assignment(id_, 2, Cause.REFUSED, NOW_MS, "busy")
    second = await list_quorum(store, id_, (A, C), first)
    assert second > first
    assert await states(store, id_) == ["superseded", "refused", "open", "open"]
    with pytest.raises(IllegalTransition):
        await store.end_assignment(id_, 1, Cause.LEASE_EXPIRED, NOW_MS, "it counts for nothing any more")
    # Its answer to the first listing is a vote, and no more.
    await deliver(store, id_, first, A, GOOD)
    await deliver(store, id_, second, C, GOOD)
    assert await state_of(store, id_) is RequestState.ASSIGNED
    await deliver(store, id_, second, A, GOOD)
    ((one, two),) = await store.ready_results(9)
    assert [(vote.node, vote.result.round) for vote in (one, two)] == [(A, second), (C, second)]
    assert len(await store.results(id_)) == 3


async def test_ready_results__oldest_first__a_quorum_counts_from_its_last_vote(
    store: SqlStore, chain: FakeChain
) -> None:
    quorum, single = await post(store, chain, salt=1, **QUORUM), await post(store, chain, salt=2)
    round_ = await list_quorum(store, quorum, (A, B))
    await deliver(store, quorum, round_, A, GOOD)
    await deliver(store, quorum, round_, B, GOOD)
    await deliver(store, single, await assign(store, single))
    async with store._database.write() as connection:
        late = {"late": NOW_MS + 99, "id": quorum, "node": B}
        await connection.execute(
            text("UPDATE results SET received_at_ms = :late WHERE request_id = :id AND node = :node"), late
        )
    ready = await store.ready_results(9)
    assert [each[0].result.request_id for each in ready] == [single, quorum]
    assert [len(each) for each in ready] == [1, 2]
    assert await store.ready_results(1) == ready[:1]


async def test_move__unpayable__keeps_the_votes_of_a_quorum(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, **QUORUM)
    round_ = await list_quorum(store, id_, (A, B))
    for node in (A, B):
        await deliver(store, id_, round_, node, GOOD)
    intent = await batch(store, id_)
    await store.end_intent(intent.intent_id, "included", 4, {"unpaid": {id_: "NODE_NOT_JOINED"}})
    assert await state_of(store, id_) is RequestState.ELIGIBLE
    assert len(await store.results(id_)) == 2


@pytest.mark.parametrize(
    ("votes", "expected"), [((), "computing"), ((A,), "computing"), ((A, B), "signed")], ids=["none", "one", "both"]
)
async def test_confirm_up_to__back_after_a_reorg__goes_as_far_as_its_votes(
    store: SqlStore, chain: FakeChain, votes: tuple[str, ...], expected: str
) -> None:
    request = make_request(**QUORUM)
    id_ = await post(store, chain, **QUORUM)
    round_ = await list_quorum(store, id_, (A, B))
    await store.end_assignment(id_, 2, Cause.ACCEPTED, NOW_MS, "", b"accept")
    for node in votes:
        await deliver(store, id_, round_, node, GOOD)
    chain.reorg(1)
    await follow(store, chain)
    assert await state_of(store, id_) is RequestState.WITHDRAWN
    block = chain.mine(chain.requested(request))
    await follow(store, chain)
    await store.confirm_up_to(block.number, NOW_MS)
    assert await state_of(store, id_) == expected


async def test_confirm_up_to__a_broken_quorum_comes_back__waits_to_be_listed(store: SqlStore, chain: FakeChain) -> None:
    request = make_request(**QUORUM)
    id_ = await post(store, chain, **QUORUM)
    round_ = await list_quorum(store, id_, (A, B))
    await deliver(store, id_, round_, A, GOOD)
    await deliver(store, id_, round_, B, OTHER)
    chain.reorg(1, [chain.requested(request)])
    await follow(store, chain)
    await store.confirm_up_to(chain.all_blocks()[-1].number, NOW_MS)
    assert await state_of(store, id_) is RequestState.ELIGIBLE


async def test_release__quorum_at_work__is_not_given(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, **QUORUM)
    await list_quorum(store, id_, (A, B))
    await store.end_assignment(id_, 2, Cause.REFUSED, NOW_MS, "busy")
    assert await state_of(store, id_) is RequestState.ELIGIBLE
    assert not await store.release(id_, START_S + 60, NOW_MS), "the other node still computes"


# The migration


async def test_migration__results_from_before__are_kept_and_take_more_beside_them(
    tmp_path: Path, clock: FakeClock, chain: FakeChain
) -> None:
    url = f"sqlite:///{tmp_path / 'relayer.db'}"
    store = await SqlStore.open(url, clock)
    id_ = await signed(store, chain)
    before = await store.results(id_)
    await store.close()
    database = await Database.open(url)
    try:
        async with database.write() as connection:
            await connection.run_sync(downgrade, "0002")
            assert await connection.run_sync(_key_of_results) == ["request_id"]
            assert (await connection.execute(text("SELECT count(*) FROM results"))).scalar() == 1
            await connection.run_sync(upgrade)
            assert await connection.run_sync(_key_of_results) == ["request_id", "node", "round"]
    finally:
        await database.close()
    store = await SqlStore.open(url, clock)
    try:
        assert await store.results(id_) == before
    finally:
        await store.close()


async def test_migration__taken_back__keeps_one_result_of_a_quorum(
    tmp_path: Path, clock: FakeClock, chain: FakeChain
) -> None:
    url = f"sqlite:///{tmp_path / 'relayer.db'}"
    store = await SqlStore.open(url, clock)
    id_ = await post(store, chain, **QUORUM)
    first = await list_quorum(store, id_, (A, B))
    await deliver(store, id_, first, A, OTHER)
    await deliver(store, id_, first, B, GOOD)
    second = await list_quorum(store, id_, (B, C), first)
    for node in (B, C):
        await deliver(store, id_, second, node, GOOD)
    await store.close()
    database = await Database.open(url)
    try:
        async with database.write() as connection:
            await connection.run_sync(downgrade, "0002")
            rows = (await connection.execute(text("SELECT node, round FROM results"))).all()
    finally:
        await database.close()
    assert [tuple(row) for row in rows] == [(B, second)]


def _key_of_results(connection: Connection) -> list[str]:
    return list(inspect(connection).get_pk_constraint("results")["constrained_columns"])
