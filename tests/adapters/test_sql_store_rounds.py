"""Rounds, cycles and assignments in the store."""

from __future__ import annotations

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.core.envelope import hash_payload
from headrace.core.errors import IllegalTransition, NotFound
from headrace.core.fairness import Account
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.scheduling import Carried
from headrace.core.types import ZERO_HASH, DecisionKind, Reason, RoundRecord
from headrace.ports import Running
from tests.adapters.steps import NOW_MS, POLICY_HASH, assign, deliver, follow, post, stages_of, state_of
from tests.fakes import NODE, REQUESTER, FakeChain, make_request

OTHER_NODE = "0x" + "d2" * 20


def record_of(round_: int) -> RoundRecord:
    return RoundRecord(round_, "0x" + "11" * 32, ZERO_HASH, POLICY_HASH, 1, ZERO_HASH, 1, 1, 0)


async def test_open_round__until_closed__is_the_same(store: SqlStore, chain: FakeChain) -> None:
    first = await store.open_round(NOW_MS, 7)
    assert (first.round, first.state, first.cycles, first.record) == (7, "open", 0, None)
    assert await store.open_round(NOW_MS + 5, 9) == first
    await store.close_round(7, record_of(7), [])
    assert (await store.open_round(NOW_MS, 1)).round == 8
    assert [(each.round, each.state) for each in await store.rounds()] == [(8, "open"), (7, "closed")]
    assert [each.round for each in await store.rounds(limit=1)] == [8]
    assert [each.round for each in await store.rounds(before=8)] == [7]
    assert await store.round(99) is None


async def test_add_cycle__comes_back_as_it_was(store: SqlStore, chain: FakeChain) -> None:
    served, waiting = await post(store, chain, salt=1), await post(store, chain, salt=2)
    round_ = await assign(store, served, skipped=(waiting,))
    await assign(store, skipped=(waiting,))
    first, second = await store.cycles(round_)
    assert [planned.decision.request_id for planned in first.plan.decisions] == [served, waiting]
    assert (first.plan.decisions[0].score_e9, first.plan.decisions[0].cost_wei) == (-(10**9), 2**200)
    assert (first.cycle, second.cycle) == (0, 1)
    assert first.plan.carried == Carried(3, -70, 2**40, (Account(REQUESTER, 2**41),))
    assert await store.carried() == Carried(4, -70, 2**40, (Account(REQUESTER, 2**41 + 1),))
    assert await store.snapshot(first.snapshot_hash) == b"1/0"
    assert first.snapshot_hash == hash_payload(b"1/0")
    assert await store.snapshot(ZERO_HASH) is None
    stored = await store.round(round_)
    assert stored is not None
    assert (stored.cycles, stored.policy_hash) == (2, POLICY_HASH)
    assert await state_of(store, served) is RequestState.ASSIGNED
    assert await state_of(store, waiting) is RequestState.ELIGIBLE


async def test_carried__nothing_planned__is_nothing(store: SqlStore) -> None:
    assert await store.carried() == Carried()


async def test_running_by_node__sums_what_is_open_or_accepted(store: SqlStore, chain: FakeChain) -> None:
    first, second, third = [await post(store, chain, salt=salt) for salt in (1, 2, 3)]
    await assign(store, first)
    await assign(store, second)
    running = await store.open_assignments()
    assert await store.running_by_node() == {
        running[0].assignment.node: Running(2, sum(each.assignment.reward_wei for each in running))
    }
    await store.end_assignment(first, 1, Cause.REFUSED, 0, "no room")
    assert {node: of.count for node, of in (await store.running_by_node()).items()} == {running[0].assignment.node: 1}
    assert third not in {each.request_id for each in await store.open_assignments()}


async def test_fulfilled_fees__are_of_what_was_fulfilled_raises_included(store: SqlStore, chain: FakeChain) -> None:
    assert await store.fulfilled_fees(10) == []
    for salt, fee_wei in enumerate((10**15, 3 * 10**15)):
        request_id = await post(store, chain, salt=salt, priority_fee_wei=fee_wei)
        chain.mine(chain.raised(request_id, 5, 5), chain.fulfilled(request_id))
    await post(store, chain, salt=9)
    assert await store.fulfilled_fees(10) == [3 * 10**15 + 5, 10**15 + 5]
    assert await store.fulfilled_fees(1) == [3 * 10**15 + 5]


async def test_add_cycle__request_moved_meanwhile__is_refused_whole(store: SqlStore, chain: FakeChain) -> None:
    first, second = await post(store, chain, salt=1), await post(store, chain, salt=2)
    await assign(store, second)
    with pytest.raises(IllegalTransition):
        await assign(store, first, second)
    assert await state_of(store, first) is RequestState.ELIGIBLE
    assert len(await store.cycles(1)) == 1
    assert len(await store.open_assignments()) == 1
    assert await store.snapshot(hash_payload(b"1/1")) is None


async def test_close_round__keeps_leaves_and_takes_no_more(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, id_)
    (cycle,) = await store.cycles(round_)
    leaves = [planned.decision for planned in cycle.plan.decisions]
    await store.close_round(round_, record_of(round_), leaves)
    assert await store.leaves(round_) == leaves
    stored = await store.round(round_)
    assert stored is not None and stored.record == record_of(round_)
    with pytest.raises(IllegalTransition, match="closed"):
        await store.add_cycle(cycle, b"", [], POLICY_HASH)
    with pytest.raises(IllegalTransition):
        await store.close_round(round_, record_of(round_), leaves)
    with pytest.raises(NotFound):
        await store.close_round(99, record_of(99), [])


async def test_restart_round__nothing_assigned__forgets_its_cycles(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, skipped=(id_,))
    await store.restart_round(round_)
    assert await store.cycles(round_) == []
    assert await store.last_decisions([id_]) == {}
    stored = await store.round(round_)
    assert stored is not None and (stored.state, stored.cycles) == ("open", 0)
    assert await assign(store, id_) == round_


async def test_restart_round__something_assigned__is_refused(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, id_)
    with pytest.raises(IllegalTransition, match="can only be closed"):
        await store.restart_round(round_)
    assert len(await store.cycles(round_)) == 1


async def test_last_decisions__are_the_newest(store: SqlStore, chain: FakeChain) -> None:
    first, second, third = [await post(store, chain, salt=salt) for salt in (1, 2, 3)]
    await assign(store, skipped=(first, second))
    await store.close_round(1, record_of(1), [])
    await assign(store, first)
    last = await store.last_decisions([first, second, third, first])
    assert set(last) == {first, second}
    assert (last[first].kind, last[first].node) == (DecisionKind.ASSIGNED, NODE)
    assert (last[second].kind, last[second].reason) == (DecisionKind.SKIPPED, Reason.NODES_BUSY)
    assert await store.last_decisions([]) == {}


async def test_end_assignment__accept_then_failure__makes_room_for_another(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    await assign(store, id_)
    await store.end_assignment(id_, 1, Cause.ACCEPTED, NOW_MS + 1, "", b"accept")
    assert await state_of(store, id_) is RequestState.COMPUTING
    (running,) = await store.open_assignments()
    assert (running.state, running.accept_signature, running.signature) == ("accepted", b"accept", b"word")
    with pytest.raises(IllegalTransition):
        await store.end_assignment(id_, 1, Cause.REFUSED, NOW_MS + 2, "")
    with pytest.raises(IllegalTransition):
        await store.end_assignment(id_, 1, Cause.ACCEPTED, NOW_MS + 2, "", b"again")
    await store.end_assignment(id_, 1, Cause.FAILED, NOW_MS + 2, "out of memory")
    assert await state_of(store, id_) is RequestState.ELIGIBLE
    assert await store.open_assignments() == []
    await assign(store, id_, node=OTHER_NODE)
    first, second = await store.assignments(id_)
    assert await store.assignments_of([id_, "0x" + "99" * 32]) == {id_: [first, second]}
    assert (first.state, first.detail, first.accept_signature) == ("failed", "out of memory", b"accept")
    assert (second.state, second.attempt, second.assignment.node) == ("open", 2, OTHER_NODE)
    entry = (await store.timeline(id_))[-2]
    assert (entry.at_ms, entry.stage, entry.detail["detail"]) == (NOW_MS + 2, "failed", "out of memory")


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.LEASE_EXPIRED])
async def test_end_assignment__never_accepted__frees_the_request(
    store: SqlStore, chain: FakeChain, cause: Cause
) -> None:
    id_ = await post(store, chain)
    await assign(store, id_)
    await store.end_assignment(id_, 1, cause, NOW_MS, "why")
    (ended,) = await store.assignments(id_)
    assert ended.state == str(cause)
    assert await state_of(store, id_) is RequestState.ELIGIBLE
    with pytest.raises(IllegalTransition):
        await store.end_assignment(id_, 1, Cause.ACCEPTED, NOW_MS, "", b"late")


async def test_end_assignment__request_closed_meanwhile__ends_all_the_same(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    await assign(store, id_)
    chain.mine(chain.fulfilled(id_))
    await follow(store, chain)
    await store.end_assignment(id_, 1, Cause.LEASE_EXPIRED, NOW_MS, "no answer")
    assert await store.open_assignments() == []
    assert await state_of(store, id_) is RequestState.FULFILLED
    assert (await stages_of(store, id_))[-1] == "assignment_lease_expired"


async def test_end_assignment__unknown_or_by_another_cause__is_refused(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    with pytest.raises(NotFound):
        await store.end_assignment(id_, 1, Cause.REFUSED, NOW_MS, "")
    await assign(store, id_)
    with pytest.raises(IllegalTransition):
        await store.end_assignment(id_, 1, Cause.BATCHED, NOW_MS, "")


async def test_deliver__late_after_another_was_assigned__counts_as_delivered(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, id_)
    await store.end_assignment(id_, 1, Cause.LEASE_EXPIRED, NOW_MS, "no answer")
    assert await deliver(store, id_, round_)
    assert await state_of(store, id_) is RequestState.SIGNED
    assert (await store.assignments(id_))[0].state == "delivered"


async def test_moves__of_unknown_requests__are_not_found(store: SqlStore) -> None:
    unknown = "0x" + "99" * 32
    with pytest.raises(NotFound):
        await store.move(unknown, Cause.CONFIRMED, NOW_MS, {})
    with pytest.raises(NotFound):
        await store.note(unknown, NOW_MS, "seen", {})
    assert await store.request(unknown) is None
    assert await store.timeline(unknown) == []
    assert await store.assignments(unknown) == []


async def test_requests__newest_first__by_state_requester_and_page(store: SqlStore, chain: FakeChain) -> None:
    other = "0x" + "c2" * 20
    first = await post(store, chain, salt=1)
    second = await post(store, chain, salt=2, requester=other)
    third = make_request(salt=3)
    chain.mine(chain.requested(third))
    await follow(store, chain)
    ids = [stored.request_id for stored in await store.requests()]
    assert ids == [chain.id_of(third), second, first]
    assert [stored.request_id for stored in await store.requests(limit=1)] == ids[:1]
    assert [stored.request_id for stored in await store.requests(before_block=3)] == ids[1:]
    assert [stored.request_id for stored in await store.requests(requester=other)] == [second]
    assert [stored.request_id for stored in await store.requests(states=[RequestState.INCLUDED])] == ids[:1]
    assert await store.requests(states=[]) == []
